/// Names of element types, and descriptions of tensors: name, dtype, shape and byte range.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/base/tensor_buffer.hpp>

namespace rrfp::safetensors {

/// The name in files: "BOOL", "F32"; empty: files have no such dtype.
std::string_view name(dtype type);
/// Nullopt if the dtype is unknown to the format or to this library.
std::optional<dtype> dtype_of(std::string_view name);

/// Bytes of a contiguous tensor. Error: a negative size, or the byte count overflows int64.
result<std::uint64_t> byte_size(dtype type, std::span<const std::int64_t> shape);

/// "[2, 3]"
std::string text_of(std::span<const std::int64_t> shape);

using string_map = std::map<std::string, std::string, std::less<>>;

/// A tensor to write. An empty shape is a scalar; a size of 0 means no elements.
struct tensor_spec {
  std::string name;
  dtype type = dtype::float32;
  std::vector<std::int64_t> shape;
};

/// A tensor of a file: row-major, little-endian.
struct tensor_info : tensor_spec {
  /// Byte offsets from the end of the header.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const { return end - begin; }
};

}  // namespace rrfp::safetensors
