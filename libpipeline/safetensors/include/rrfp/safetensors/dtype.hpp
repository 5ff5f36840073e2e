/// What the elements of a tensor are, and what a tensor is called, shaped and where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/result.hpp>

namespace rrfp::safetensors {

enum class dtype : std::uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  f64,
  i64,
  u64
};

/// Bytes of an element.
std::size_t size_of(dtype type);
/// As files write it: "BOOL", "F32".
std::string_view name(dtype type);
/// Nothing: the format, or this library, knows no such dtype.
std::optional<dtype> dtype_of(std::string_view name);

/// Of a tensor without holes. Error: a negative size, or more bytes than 64 bits count.
result<std::uint64_t> byte_size(dtype type, std::span<const std::int64_t> shape);

/// "[2, 3]"
std::string text_of(std::span<const std::int64_t> shape);

using string_map = std::map<std::string, std::string, std::less<>>;

/// A tensor to be written. No size: a scalar, of one element; a size of 0: no element.
struct tensor_spec {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::int64_t> shape;
};

/// A tensor of a file: row-major, little-endian.
struct tensor_info : tensor_spec {
  /// In bytes, from the end of the header.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const { return end - begin; }
};

}  // namespace rrfp::safetensors
