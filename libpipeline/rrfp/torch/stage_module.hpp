/// The computation of a chunk. The runtime uses models only through this interface; a user's model
/// implements it (models/model_chunk.cpp is an example).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/torch/batch_source.hpp>
#include <rrfp/torch/operators.hpp>

namespace rrfp::compute {

struct parameter {
  /// Unique in the whole model; a copy has the name of its owner. Also the name in files.
  std::string name;
  /// A float leaf; requires_grad unless it is frozen.
  at::Tensor value;
  tie tied = tie::none;
  /// Set if each tensor-parallel rank holds a different part. Otherwise all ranks hold the same
  /// value and must compute the same gradient.
  std::optional<shard> part = std::nullopt;
  stored_form stored = {};
};

/// A tensor that is not trained, but is part of the state: batch norm's statistics.
struct buffer {
  std::string name;  ///< unique in the whole model, also among the parameters
  at::Tensor value;
};

/// Lazy access of a chunk to its microbatch: most chunks need no data, and loading may be
/// expensive. The functions throw what the batch source throws; the references are valid during
/// forward().
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

struct forward_input {
  /// The microbatch's inputs on the first virtual stage; elsewhere the output of the previous
  /// chunk.
  at::Tensor input;
  /// The microbatch's targets; defined only on the last virtual stage.
  at::Tensor targets;
  /// Key of the step or evaluation, not the number that users see (rrfp/base/ids.hpp).
  step_id step;
  microbatch_id mb;
  /// For linear() and embedding(); null: they are ordinary operators.
  weight_stash* stash = nullptr;
  /// May be null for modules that do not use it.
  microbatch_view* batch = nullptr;
  /// False in evaluations: no gradients and no dropout.
  bool training = true;
  /// Receives the output of the microbatch on the last virtual stage; empty: outputs are not
  /// needed.
  std::function<void(const at::Tensor&)> keep_output = {};
};

/// Not thread-safe: one thread uses a chunk.
class stage_module {
 public:
  stage_module() = default;
  stage_module(const stage_module&) = delete;
  stage_module& operator=(const stage_module&) = delete;
  virtual ~stage_module() = default;

  /// Whether the first or last chunk accepts the microbatch. Error: the expected and the actual
  /// form.
  virtual status check(const microbatch&) const { return success(); }

  /// Always the same parameters in the same order.
  virtual std::span<const parameter> parameters() const = 0;

  /// Always the same tensors; forward() may change them in place.
  virtual std::vector<buffer> buffers() const { return {}; }
  /// Whether forward() changes buffers in training: then the stage runs its F in the order of the
  /// microbatches, and each F once.
  virtual bool forwards_in_order() const { return false; }

  /// The activation for the next chunk, or, on the last virtual stage, the sum (a scalar) of the
  /// losses of all targets that enter the loss. Must depend only on its arguments, the
  /// parameters and, if forwards run in order, buffers; otherwise the result of training depends on
  /// the order of execution.
  ///
  /// Parameters that operators other than linear() and embedding() use get their gradient from
  /// ordinary autograd, in W if that part of the graph can run apart from B. A parameter that no
  /// microbatch of a step uses has no gradient.
  virtual at::Tensor forward(const forward_input& in) = 0;
};

}  // namespace rrfp::compute
