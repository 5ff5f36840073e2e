/// What a chunk of the pipeline computes. The runtime knows models only through this interface;
/// a user's own model implements it (models/model_chunk.cpp shows how).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/batch_source.hpp>
#include <rrfp/compute/operators.hpp>
#include <rrfp/compute/shard.hpp>
#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::compute {

/// One logical parameter may live on two chunks (the token embedding that is also the head): its
/// owner and a copy. Their gradients are summed at the end of the step, owner + copy on both sides,
/// so the values stay the same bit for bit. A model has one such pair at most.
enum class tie : std::uint8_t { none, owner, copy };

/// How files hold a parameter, where that is not how the model does.
struct stored_form {
  /// A matrix [out, in] is stored as [in, out].
  bool transposed = false;
  /// The same elements in the same order under other sizes, those of the whole parameter; empty:
  /// the sizes of the value.
  std::vector<std::int64_t> sizes = {};

  bool operator==(const stored_form&) const = default;
};

struct parameter {
  /// Unique in the whole model; a copy has the name of its owner. Files know it by this name.
  std::string name;
  /// A float leaf. It requires a gradient unless it is frozen.
  at::Tensor value;
  tie tied = tie::none;
  /// Set if the tensor-parallel ranks of the stage hold different parts; all hold the same value
  /// otherwise, and must get the same gradient.
  std::optional<shard> part = std::nullopt;
  stored_form stored = {};
};

/// What a chunk may ask about the microbatch that it computes. Asked for, not given: most chunks
/// need nothing, and loading may cost. Both throw what the batch source throws; what they return is
/// valid during forward().
class microbatch_view {
 public:
  microbatch_view() = default;
  microbatch_view(const microbatch_view&) = delete;
  microbatch_view& operator=(const microbatch_view&) = delete;
  virtual ~microbatch_view() = default;

  virtual const microbatch& whole() = 0;
  /// Without its images.
  virtual const microbatch& text() = 0;
  virtual const microbatch_layout& layout() = 0;
};

/// A microbatch at hand, for a loop of one's own.
class loaded_microbatch final : public microbatch_view {
 public:
  explicit loaded_microbatch(microbatch mb) : mb_(std::move(mb)), layout_(layout_of(mb_)) {}

  const microbatch& whole() override { return mb_; }
  const microbatch& text() override { return mb_; }
  const microbatch_layout& layout() override { return layout_; }

 private:
  microbatch mb_;
  microbatch_layout layout_;
};

struct forward_input {
  /// The microbatch's inputs on the first virtual stage; elsewhere what the chunk before returned.
  at::Tensor input;
  /// The microbatch's targets; defined on the last virtual stage only.
  at::Tensor targets;
  /// A key of the step or evaluation; rrfp/schedule/step_name.hpp makes a number or a name of it.
  step_id step;
  microbatch_id mb;
  /// For linear() and embedding(); null: ordinary autograd.
  weight_stash* stash = nullptr;
  /// May be null for modules that ask nothing.
  microbatch_view* batch = nullptr;
  /// False: nothing is learnt from it, and dropout has no place.
  bool training = true;
  /// On the last virtual stage, where outputs are asked for: takes that of the microbatch. Empty:
  /// nobody asks.
  std::function<void(const at::Tensor&)> keep_output = {};
};

/// Not thread-safe: one thread drives a chunk.
class stage_module {
 public:
  stage_module() = default;
  stage_module(const stage_module&) = delete;
  stage_module& operator=(const stage_module&) = delete;
  virtual ~stage_module() = default;

  /// Whether the first or last chunk can make something of it. Error: what was expected, what came.
  virtual status check(const microbatch&) const { return success(); }

  /// Always the same ones in the same order.
  virtual std::span<const parameter> parameters() const = 0;

  /// The activation for the next chunk, or, on the last virtual stage, the sum (a scalar) of the
  /// losses of all targets that count. Must depend on its arguments and the parameters alone, or
  /// the result of training depends on the order of execution.
  ///
  /// Parameters used by any other operator than linear() and embedding() get their gradient from
  /// ordinary autograd in B; it is kept until the microbatch's turn to be folded. One that no
  /// microbatch of a step has used has a gradient of zeros, since that is the gradient of the whole
  /// batch; what is never used should be frozen.
  virtual at::Tensor forward(const forward_input& in) = 0;
};

}  // namespace rrfp::compute
