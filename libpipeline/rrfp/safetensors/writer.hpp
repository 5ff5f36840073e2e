/// Writes a safetensors file tensor by tensor, so only one tensor needs to be in memory. All
/// tensors are declared first, because the header precedes the data.
///
///   auto w = writer::create("a.safetensors", {{"weight", dtype::float32, {2, 3}}}, {});
///   for (const auto& t : (*w)->tensors()) (*w)->write(t.name, bytes_of(t.name));
///   (*w)->finish();
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/safetensors/dtype.hpp>

namespace rrfp::io {
class atomic_file;
}

namespace rrfp::safetensors {

/// Receives all bytes of the file in order, for example to compute a checksum.
using byte_observer = std::function<void(std::span<const std::byte>)>;

/// Not thread-safe. Until finish() succeeds the path is unchanged; without it the destructor
/// removes the temporary file.
class writer {
 public:
  /// Writes the header. Error: the path is not writable, a name is duplicate or reserved, a shape
  /// is impossible, or the header exceeds header_bytes_max.
  static result<std::unique_ptr<writer>> create(const std::string& path,
                                                std::vector<tensor_spec> tensors,
                                                const string_map& metadata,
                                                byte_observer observe = {});

  ~writer();

  /// In the order in which they must be written: largest element size first, so that each tensor is
  /// aligned to its elements; then as declared.
  std::span<const tensor_info> tensors() const { return tensors_; }
  /// Appends to the next tensor, whole or in pieces; empty tensors may be skipped. Aborts if `name`
  /// is not the next tensor or it gets too many bytes. After an error, such as a full disk, the
  /// file cannot be finished.
  status write(std::string_view name, std::span<const std::byte> bytes);
  /// Renames the file to its path. All tensors must be complete.
  status finish();

 private:
  writer(std::vector<tensor_info> tensors, std::unique_ptr<io::atomic_file> to,
         byte_observer observe);
  status append(std::span<const std::byte> bytes);

  const std::vector<tensor_info> tensors_;
  const std::unique_ptr<io::atomic_file> to_;
  const byte_observer observe_;
  std::size_t next_ = 0;
  std::uint64_t written_ = 0;  ///< bytes of data so far
};

/// Assigns byte ranges to the tensors, in file order. Error: as writer::create(), without the
/// file's name.
result<std::vector<tensor_info>> lay_out(std::vector<tensor_spec> tensors);

}  // namespace rrfp::safetensors
