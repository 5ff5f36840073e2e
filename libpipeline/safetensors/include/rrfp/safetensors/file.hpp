/// A safetensors file, mapped into memory: opening reads the header alone, however large the
/// tensors are, and the system brings in what is looked at.
///
///   8 bytes       length of the header, little-endian
///   the header    JSON: name -> dtype, shape, begin and end of the bytes (header.hpp)
///   the data      the tensors' bytes, without holes
///
/// What open() gives is valid to the last rule of the format; a file from anywhere may be tried.
/// The file must not be cut short while it is open (the system ends a process that reads beyond
/// the end of a mapped file); one that is replaced by renaming stays as it was for who has it open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <rrfp/safetensors/dtype.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::safetensors {

/// Of a header, as in other readers of the format. Larger ones are refused.
inline constexpr std::uint64_t header_bytes_max = 100'000'000;

/// Immutable, so thread-safe.
class file {
 public:
  /// Error: one line that names the file and, where there is one, the tensor: not readable, shorter
  /// than its own header says, a header that is no JSON, unknown dtypes, impossible shapes, offsets
  /// that overlap, leave holes or do not fit the shape, names that stand twice, trailing bytes.
  static result<std::shared_ptr<const file>> open(const std::string& path);
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  ~file();

  const std::string& path() const { return path_; }
  /// In the order of their bytes.
  std::span<const tensor_info> tensors() const { return tensors_; }
  /// Null if there is none.
  const tensor_info* find(std::string_view name) const;
  /// The bytes of one of tensors(), valid as long as the file. They are aligned to 8 at most, and
  /// not at all if who wrote the file did not care.
  std::span<const std::byte> bytes(const tensor_info& t) const;
  /// The texts under "__metadata__".
  const string_map& metadata() const { return metadata_; }

 private:
  file(std::string path, std::span<const std::byte> mapped);
  status read_header();

  const std::string path_;
  const std::span<const std::byte> mapped_;
  std::span<const std::byte> data_;
  std::vector<tensor_info> tensors_;
  std::unordered_map<std::string_view, const tensor_info*> by_name_;
  string_map metadata_;
};

}  // namespace rrfp::safetensors
