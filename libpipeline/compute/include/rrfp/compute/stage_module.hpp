/// What a chunk of the pipeline computes. The runtime knows models only through this interface;
/// a user's own model implements it (make_gpt_chunk() shows how).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/operators.hpp>
#include <rrfp/compute/shard.hpp>
#include <rrfp/schedule/ids.hpp>

namespace rrfp::compute {

/// One logical parameter may live on two chunks (the token embedding that is also the head): its
/// owner and a copy. Their gradients are summed at the end of the step, owner + copy on both sides,
/// so the values stay the same bit for bit. A model has one such pair at most.
enum class tie : std::uint8_t { none, owner, copy };

struct parameter {
  /// Unique in the whole model; a copy has the name of its owner.
  std::string name;
  /// A float leaf. It requires a gradient unless it is frozen.
  at::Tensor value;
  tie tied = tie::none;
  /// Set if the tensor-parallel ranks of the stage hold different parts; all hold the same value
  /// otherwise, and must get the same gradient.
  std::optional<shard> part = std::nullopt;
};

struct forward_input {
  /// Token ids, int64 [B, T], on the first virtual stage; elsewhere what the chunk before returned.
  at::Tensor input;
  /// int64 [B, T], ignored_target where nothing counts; defined on the last virtual stage only.
  at::Tensor targets;
  step_id step;
  microbatch_id mb;
  /// For linear() and embedding(); null: ordinary autograd.
  weight_stash* stash = nullptr;
};

/// Not thread-safe: one thread drives a chunk.
class stage_module {
 public:
  stage_module() = default;
  stage_module(const stage_module&) = delete;
  stage_module& operator=(const stage_module&) = delete;
  virtual ~stage_module() = default;

  /// Always the same ones in the same order.
  virtual std::span<const parameter> parameters() const = 0;

  /// The activation for the next chunk, or, on the last virtual stage, the sum (a scalar) of the
  /// losses of all targets that count. Must depend on its arguments and the parameters alone, or
  /// the result of training depends on the order of execution.
  ///
  /// Parameters used by any other operator than linear() and embedding() get their gradient from
  /// ordinary autograd in B; it is kept until the microbatch's turn to be folded.
  virtual at::Tensor forward(const forward_input& in) = 0;
};

}  // namespace rrfp::compute
