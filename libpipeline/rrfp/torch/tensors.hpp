/// Converts between libtorch's tensors and the runtime's buffers, which do not depend on libtorch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/compute/rank_group.hpp>

namespace rrfp::compute {

/// dtype::other if buffers have no such type.
dtype dtype_of(at::ScalarType type);
/// Nullopt for dtype::other.
std::optional<at::ScalarType> scalar_type_of(dtype type);

/// Shares the memory of `t` and keeps it alive. An undefined tensor gives an undefined buffer.
tensor_buffer to_buffer(at::Tensor t);
/// The tensor from which to_buffer() made `b`, or one that shares its memory and keeps it. A buffer
/// of another framework must be on the host and contiguous.
at::Tensor to_tensor(const tensor_buffer& b);

/// A contiguous copy in host memory.
at::Tensor host_copy_of(const at::Tensor& t);

/// A tensor of a checkpoint.
struct named_tensor {
  std::string name;
  at::Tensor value;
  std::optional<shard> part = std::nullopt;  ///< as in named_buffer
  stored_form stored = {};
};
named_buffer to_buffer(named_tensor t);
named_tensor to_tensor(const named_buffer& b);
std::vector<named_tensor> to_tensors(std::span<const named_buffer> all);

/// A contiguous copy of the shard `s` of `whole`.
at::Tensor slice_of(const at::Tensor& whole, const shard& s);

/// Copies the overlap of two shards of one parameter. Returns the number of copied elements.
std::int64_t copy_overlap(const at::Tensor& from, const shard& from_shard, at::Tensor& to,
                          const shard& to_shard);

/// In place; on any device, of any strides.
void all_reduce_sum(rank_group& group, at::Tensor& t);
void all_reduce_max(rank_group& group, at::Tensor& t);

}  // namespace rrfp::compute
