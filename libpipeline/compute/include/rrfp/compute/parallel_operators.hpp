/// Operators whose weights are cut over the ranks of a stage, as in Shoeybi et al., Megatron-LM,
/// 2019.
///
/// A column-parallel linear layer gives each rank some of the outputs, a row-parallel one takes
/// some of the inputs on each rank and sums the results; one after the other they need one
/// all-reduce in forward (after the second) and one in backward (before the first). Between the
/// two, activations are cut; outside, every rank holds the same ones, bit for bit.
///
/// Weight gradients are local: W, and the fold of a fused backward, need no other rank, so ranks
/// meet in F and B alone.
///
/// With a null group, or one of size 1, every function is the plain one of operators.hpp (or
/// libtorch), to the last bit. All ranks must make the same calls in the same order. Throws
/// group_error.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/operators.hpp>
#include <rrfp/compute/rank_group.hpp>

namespace rrfp::compute {

/// Where a replicated activation enters a cut part: `x` as it is; in backward its gradient, of
/// which every rank has a part, is summed.
at::Tensor copy_to_group(const at::Tensor& x, const std::shared_ptr<rank_group>& group);

/// Where partial results leave a cut part: the sum over the ranks; in backward nothing.
at::Tensor reduce_from_group(const at::Tensor& x, const std::shared_ptr<rank_group>& group);

/// `x` replicated [..., in]; `weight` [out / size, in] and `bias` [out / size] or undefined are
/// this rank's rows. Returns this rank's outputs, [..., out / size].
at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, weight_stash* stash,
                                  const std::shared_ptr<rank_group>& group);

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
/// size] are this rank's, in the order of the ranks, `targets` [n] replicated. No rank ever holds
/// the logits or probabilities of another: two numbers a target are exchanged in forward, besides
/// its maximum, and nothing in backward. Returns a scalar, the same on every rank.
at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                  const std::shared_ptr<rank_group>& group);

}  // namespace rrfp::compute
