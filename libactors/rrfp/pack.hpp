/// Packs several tensors into the one that travels between two stages.
///
/// A tensor of float32 travels as it is. Anything else is packed into one float32 vector, which
/// autograd passes through: a header, then each tensor at a multiple of 64 bytes. A packed vector
/// has `packed_dimensions` dimensions, all but the last of size 1; a tensor with as many dimensions
/// is packed itself, so the receiver can tell them apart.
///
/// Thread-safe: the functions have no state.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rrfp {

constexpr std::int64_t packed_dimensions = 8;

struct parcel {
  /// Dense ones of any type and shape; undefined tensors stay undefined.
  std::vector<at::Tensor> tensors;
  std::string note;  ///< any bytes
};

/// Gradients flow through tensors of float32, bfloat16 and float16, which travel as float32. Throws
/// c10::Error if a tensor of another type requires a gradient, or is quantized, sparse, nested or
/// without values (meta).
///
/// A packed tensor keeps its strides, unless they overlap or would take more than 16 times the
/// memory: then it arrives contiguous, as does one that travels as it is. The gradient of a
/// channels_last tensor keeps these strides; other gradients arrive contiguous.
at::Tensor pack(const parcel& p);
/// The inverse of pack(). The tensors are views of the message where their types allow.
parcel unpack(const at::Tensor& message);

inline at::Tensor pack(std::vector<at::Tensor> tensors) {
  return pack(parcel{std::move(tensors), {}});
}

}  // namespace rrfp
