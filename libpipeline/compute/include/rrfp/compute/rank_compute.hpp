/// What the runtime asks of the compute of one rank. stage_compute does it with libtorch; an
/// emulated device only pretends to.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/parameter_report.hpp>
#include <rrfp/compute/shard.hpp>
#include <rrfp/compute/stage_module.hpp>
#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::compute {

struct microbatch_loss {
  microbatch_id mb;
  double mean = 0;          ///< over the tokens that count, in nats
  std::int64_t tokens = 0;  ///< tokens that count
};

/// A tensor of a checkpoint.
struct named_tensor {
  std::string name;
  at::Tensor value;
  /// Which part of the tensor of that name it is; nothing: all of it, the same on every rank.
  std::optional<shard> part = std::nullopt;
  /// How files of the model's own kind hold the whole tensor; checkpoints hold `value`.
  stored_form stored = {};
};

/// What a step is for. An evaluation has the tasks of a training, so that it is ranked, limited and
/// watched like one, but its Bs and Ws compute nothing.
enum class step_purpose : std::uint8_t { training, evaluation };

/// The life of a step: begin_step, run for every launch of the stage core, gradients() summed over
/// the replicas, tied_gradient/join_tied if there is a tie across stages, squared_norms, apply; of
/// an evaluation: begin_step, run for every launch, losses, end_evaluation.
/// Not thread-safe, but for held_bytes() and peak_bytes().
class rank_compute {
 public:
  rank_compute() = default;
  rank_compute(const rank_compute&) = delete;
  rank_compute& operator=(const rank_compute&) = delete;
  virtual ~rank_compute() = default;

  virtual void begin_step(step_id step, step_purpose purpose) = 0;
  /// Takes the activation (F) or output gradient (B, BW), undefined at the ends of the model; gives
  /// what goes on to a neighbour, undefined if nothing does.
  virtual at::Tensor run(const launch& l, at::Tensor input) = 0;
  /// `what`, an input, could not be brought to where this computes: throws that with `why` and what
  /// is known here.
  virtual void refuse(const std::string& what, const std::string& why) const {
    throw std::runtime_error(what + ": " + why);
  }

  virtual std::vector<microbatch_loss> losses() const = 0;
  virtual std::vector<at::Tensor> gradients() const = 0;
  virtual std::optional<at::Tensor> tied_gradient() const = 0;
  virtual tie tied_side() const = 0;
  virtual void join_tied(const at::Tensor& partner) = 0;
  virtual std::vector<parameter_norm> squared_norms() = 0;
  virtual void apply(double scale, double lr) = 0;
  virtual void end_evaluation() = 0;
  virtual std::vector<parameter_hash> hashes() const = 0;

  /// What a run needs to go on; nothing if nothing was computed. Legal between steps.
  virtual std::vector<named_tensor> snapshot() const { return {}; }
  virtual status restore(std::span<const named_tensor>) { return success(); }

  /// Memory of launches, now and at most in the current step.
  virtual std::int64_t held_bytes() const = 0;
  virtual std::int64_t peak_bytes() const = 0;
};

}  // namespace rrfp::compute
