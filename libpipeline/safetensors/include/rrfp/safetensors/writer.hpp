/// Writes a safetensors file tensor by tensor, so that no more than one of them need be in memory.
/// What is to come is said first: the header stands before the data.
///
///   auto w = writer::create("a.safetensors", {{"weight", dtype::f32, {2, 3}}}, {});
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

namespace rrfp::files {
class whole_file;
}

namespace rrfp::safetensors {

/// Sees all bytes of a file as they are written, from the first to the last: for a checksum.
using byte_observer = std::function<void(std::span<const std::byte>)>;

/// Not thread-safe. Until finish() has succeeded nothing stands at the path, or what stood there
/// before; the end of the object takes away what was written.
class writer {
 public:
  /// Writes the header. Error: the place cannot be written to, a name that stands twice or is
  /// reserved, a shape that no tensor has, a header larger than readers take.
  static result<std::unique_ptr<writer>> create(const std::string& path,
                                                std::vector<tensor_spec> tensors,
                                                const string_map& metadata,
                                                byte_observer observe = {});

  ~writer();

  /// In the order in which they must be written: those with the largest elements first, so that
  /// each is aligned to its elements; otherwise as they were declared.
  std::span<const tensor_info> tensors() const { return tensors_; }
  /// Appends to the tensor that comes next, whole or in pieces; empty tensors may be left out.
  /// Another one's name, or more bytes than it has, is a programmer's error. Error: the disk is
  /// full, say; the file can only be given up then.
  status write(std::string_view name, std::span<const std::byte> bytes);
  /// Puts the file in its place. All bytes of all tensors must be there.
  status finish();

 private:
  writer(std::vector<tensor_info> tensors, std::unique_ptr<files::whole_file> to,
         byte_observer observe);
  status append(std::span<const std::byte> bytes);

  const std::vector<tensor_info> tensors_;
  const std::unique_ptr<files::whole_file> to_;
  const byte_observer observe_;
  std::size_t next_ = 0;
  std::uint64_t written_ = 0;  ///< bytes of data
};

/// Where the tensors lie in a file, in the order in which it holds them. Error: as
/// writer::create(), without the file's name.
result<std::vector<tensor_info>> lay_out(std::vector<tensor_spec> tensors);

}  // namespace rrfp::safetensors
