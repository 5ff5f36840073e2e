/// Token ids on disk: NAME.bin, the ids one after another as little-endian uint16 or uint32, and
/// NAME.json, which says what they are:
///
///   {"format": "rrfp-tokens", "version": 1, "dtype": "uint16", "tokens": 1000,
///    "vocabulary": 50257, "documents": [0, 312, 700]}
///
/// `documents` holds where each document begins; without it the tokens are one text. Other keys are
/// for people. scripts/tokenize writes such pairs.
///
/// It is read piece by piece, not mapped into memory: one that is cut short meanwhile is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/result.hpp>

#include "input_file.hpp"

namespace rrfp::data {

/// Of NAME.json, which is held in memory while it is read.
inline constexpr std::uint64_t sidecar_bytes_max = std::uint64_t{1} << 30;

class token_file {
 public:
  /// Error: "PATH: ...", of a file that cannot be read, has no sidecar or another size than that
  /// says, or holds an id that its vocabulary or the model's does not have. Reads all of it.
  static result<std::unique_ptr<const token_file>> open(const std::string& path,
                                                        std::uint32_t model_vocabulary);
  token_file(const token_file&) = delete;
  token_file& operator=(const token_file&) = delete;

  const std::string& path() const { return file_->path(); }
  std::uint64_t tokens() const { return tokens_; }
  /// Where documents begin, ascending from 0; empty if the tokens are one text.
  const std::vector<std::uint64_t>& documents() const { return documents_; }
  /// Widens the tokens from `first` on. Error: "PATH: cannot be read: ...".
  status copy(std::uint64_t first, std::span<std::int64_t> to) const;
  /// XXH64 of the ids and of where documents begin.
  std::uint64_t hash() const { return hash_; }

 private:
  token_file() = default;
  status read_sidecar(const std::string& path);
  status check_size() const;
  status check_ids(std::uint32_t model_vocabulary);
  /// Those from `first` on, as many as fit.
  template <class Id>
  status read_ids(std::uint64_t first, std::span<Id> to) const;
  template <class Id>
  status check_ids_of(std::uint64_t limit, std::string_view limit_is);
  template <class Id>
  status widen(std::uint64_t first, std::span<std::int64_t> to) const;

  std::shared_ptr<const input_file> file_;
  std::uint32_t width_ = 0;  ///< bytes of an id
  std::uint64_t tokens_ = 0;
  std::uint64_t vocabulary_ = 0;
  std::vector<std::uint64_t> documents_;
  std::uint64_t hash_ = 0;
};

}  // namespace rrfp::data
