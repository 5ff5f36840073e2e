/// Token ids on disk: NAME.bin holds the ids as little-endian uint16 or uint32, and NAME.json
/// describes them:
///
///   {"format": "rrfp-tokens", "version": 1, "dtype": "uint16", "tokens": 1000,
///    "vocabulary": 50257, "documents": [0, 312, 700]}
///
/// `documents` holds the offset of each document; without it the tokens are one text. Other keys
/// are ignored. scripts/tokenize writes such pairs.
///
/// Files are read in blocks, not memory-mapped, so truncation during a run is an error, not a
/// crash.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>

#include "input_file.hpp"

namespace rrfp::data {

/// Largest NAME.json, which is parsed in memory.
inline constexpr std::uint64_t sidecar_bytes_max = std::uint64_t{1} << 30;

class token_file {
 public:
  /// Reads and checks all ids. Error: "PATH: ..."; the file is unreadable, has no sidecar, has
  /// another size than the sidecar gives, or holds an id outside its vocabulary or the model's.
  static result<std::unique_ptr<const token_file>> open(const std::string& path,
                                                        std::uint32_t model_vocabulary);
  token_file(const token_file&) = delete;
  token_file& operator=(const token_file&) = delete;

  const std::string& path() const { return file_->path(); }
  std::uint64_t tokens() const { return tokens_; }
  /// Offsets of the documents, ascending from 0; empty if the tokens are one text.
  const std::vector<std::uint64_t>& documents() const { return documents_; }
  /// Copies tokens from `first` on into `to`, widened to int64. Error: "PATH: cannot be read: ...".
  status copy(std::uint64_t first, std::span<std::int64_t> to) const;
  /// XXH64 of the ids and the document offsets.
  std::uint64_t hash() const { return hash_; }

 private:
  token_file() = default;
  status read_sidecar(const std::string& path);
  status check_size() const;
  status check_ids(std::uint32_t model_vocabulary);
  template <class Id>
  status check_ids_of(std::uint64_t limit, std::string_view limit_name);

  std::shared_ptr<const input_file> file_;
  std::uint32_t width_ = 0;  ///< bytes of an id
  std::uint64_t tokens_ = 0;
  std::uint64_t vocabulary_ = 0;
  std::vector<std::uint64_t> documents_;
  std::uint64_t hash_ = 0;
};

}  // namespace rrfp::data
