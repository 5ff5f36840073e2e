/// Converts between libtorch's element types and the codes of the wire format.
#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "wire_format.hpp"

namespace rrfp::actors::ucx {

/// Empty for a type that cannot be sent.
inline std::optional<wire_dtype> wire_dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte: return wire_dtype::uint8;
    case at::kChar: return wire_dtype::int8;
    case at::kShort: return wire_dtype::int16;
    case at::kInt: return wire_dtype::int32;
    case at::kLong: return wire_dtype::int64;
    case at::kHalf: return wire_dtype::float16;
    case at::kBFloat16: return wire_dtype::bfloat16;
    case at::kFloat: return wire_dtype::float32;
    case at::kDouble: return wire_dtype::float64;
    case at::kBool: return wire_dtype::boolean;
    default: return std::nullopt;
  }
}

inline at::ScalarType scalar_type_of(wire_dtype dtype) {
  switch (dtype) {
    case wire_dtype::uint8: return at::kByte;
    case wire_dtype::int8: return at::kChar;
    case wire_dtype::int16: return at::kShort;
    case wire_dtype::int32: return at::kInt;
    case wire_dtype::int64: return at::kLong;
    case wire_dtype::float16: return at::kHalf;
    case wire_dtype::bfloat16: return at::kBFloat16;
    case wire_dtype::float32: return at::kFloat;
    case wire_dtype::float64: return at::kDouble;
    case wire_dtype::boolean: return at::kBool;
  }
  return at::kByte;
}

}  // namespace rrfp::actors::ucx
