/// A memory-mapped safetensors file. Opening reads the header alone, however large the tensors are;
/// the operating system loads data on access.
///
///   8 bytes       length of the header, little-endian
///   the header    JSON: name -> dtype, shape, begin and end of the bytes (header.hpp)
///   the data      the tensors' bytes, without holes
///
/// open() checks every rule of the format, so untrusted files are safe to open. A file must not be
/// truncated while it is open: the process gets SIGBUS if it reads beyond the new end. A file may
/// be replaced by rename; readers that have it open keep the old contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/safetensors/dtype.hpp>

namespace rrfp::safetensors {

/// Larger headers are refused; other readers of the format have the same limit.
inline constexpr std::uint64_t header_bytes_max = 100'000'000;

/// Immutable, so thread-safe. May own the memory of buffers that view its bytes.
class file final : public buffer_owner {
 public:
  /// Error, in one line with the file and the tensor if there is one: the file is unreadable or
  /// truncated, or it has a header that is not JSON, an unknown dtype, an impossible shape, offsets
  /// that overlap, leave holes or do not fit the shape, a duplicate name, or trailing bytes.
  static result<std::shared_ptr<const file>> open(const std::string& path);
  ~file() override;

  const std::string& path() const { return path_; }
  /// In the order of their byte ranges.
  std::span<const tensor_info> tensors() const { return tensors_; }
  /// Null if there is no such tensor.
  const tensor_info* find(std::string_view name) const;
  /// The bytes of one of tensors(), valid during the lifetime of the file object. They may be
  /// unaligned: alignment depends on the program that wrote the file, and is at most 8.
  std::span<const std::byte> bytes(const tensor_info& t) const;
  /// The strings under "__metadata__".
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
