/// Operators whose weights are sharded over the tensor-parallel ranks of a stage (Shoeybi et al.,
/// Megatron-LM, 2019).
///
/// In a column-parallel linear layer each rank computes some of the outputs. In a row-parallel one
/// each rank uses some of the inputs, and the results are summed. A column-parallel layer followed
/// by a row-parallel one needs one all-reduce in forward (after the second) and one in backward
/// (before the first). Activations are sharded between the two and replicated outside, bit for bit.
///
/// Weight gradients are local, so W and the fold of a fused backward need no communication: only F
/// and B run collectives.
///
/// With a null group, or one of size 1, every function equals that of operators.hpp (or libtorch)
/// bit for bit. All ranks must make the same calls in the same order. Throws group_error.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/torch/operators.hpp>

namespace rrfp::compute {

/// Entry of a replicated activation into a sharded part: the identity in forward; an all-reduce of
/// the gradient in backward.
at::Tensor copy_to_group(const at::Tensor& x, const std::shared_ptr<rank_group>& group);

/// Exit of partial results from a sharded part: an all-reduce in forward; the identity in backward.
at::Tensor reduce_from_group(const at::Tensor& x, const std::shared_ptr<rank_group>& group);

/// `x` is this rank's [..., in / size], `weight` its columns [out, in / size]; `bias` [out] or
/// undefined is replicated and added once, after the sum. Returns [..., out], the same on every
/// rank.
at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, weight_stash* stash,
                               const std::shared_ptr<rank_group>& group);

/// `indices` replicated, int64 of any shape; `weight` [vocabulary / size, width] are this rank's
/// rows, in the order of the ranks. Returns [..., width], the same on every rank.
at::Tensor parallel_embedding(const at::Tensor& indices, const at::Tensor& weight,
                              weight_stash* stash, const std::shared_ptr<rank_group>& group);

/// Sum of the cross-entropies of the targets that are not ignored_target. `logits` [n, vocabulary /
/// size] are this rank's, in the order of the ranks, `targets` [n] replicated. Ranks do not
/// exchange logits or probabilities: forward reduces three numbers per target, the maximum and two
/// sums; backward needs no communication. Returns a scalar, the same on every rank.
at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                  const std::shared_ptr<rank_group>& group);

}  // namespace rrfp::compute
