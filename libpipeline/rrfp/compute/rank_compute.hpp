/// The interface of the runtime to the computation of one rank: stage_compute with libtorch, an
/// emulated device, or another framework.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/compute/parameters.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/step_measures.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp::compute {

/// Two chunks may share one logical parameter (a token embedding that is also the head): one holds
/// the owner, the other a copy. At the end of a step both sides compute owner gradient + copy
/// gradient, so the values stay equal bit for bit. A model has at most one such pair.
enum class tie : std::uint8_t { none, owner, copy };

using rrfp::stored_form;

/// A tensor of a checkpoint.
struct named_buffer {
  std::string name;
  tensor_buffer value;
  /// The part of the whole tensor; nullopt: the whole tensor, replicated on every rank.
  std::optional<shard> part = std::nullopt;
  /// How exported model files store the whole tensor; checkpoints hold `value`.
  stored_form stored = {};
};

/// Prefix of the optimizer state in snapshots, before the parameter's name.
inline constexpr std::string_view optimizer_prefix = "optimizer.";

/// Whether a snapshot has copies of tied parameters, whose owner is another stage. A rank that
/// restores its own snapshot needs them.
enum class tied_copies : std::uint8_t { left_out, included };

/// Whose memory a snapshot uses. shared: the rank's own where possible, so the next apply() changes
/// the snapshot too. copied: copies that do not change.
enum class snapshot_memory : std::uint8_t { shared, copied };

/// Sequence of calls in a step: begin_step, run for every launch of the stage core, sum_gradients
/// if there are replicas, tied_gradient/join_tied if a tie spans two stages, squared_norms, apply.
/// If replicas run microbatches of other replicas: take_opened_sum after each run, and
/// join_opened_sum once between begin_step and sum_gradients.
/// Without an update: begin_step, run for every launch, losses, end_without_update.
///
/// Functions that return no status report errors as exceptions, which fail the run. Only
/// held_bytes() and peak_bytes() are thread-safe.
class rank_compute {
 public:
  rank_compute() = default;
  rank_compute(const rank_compute&) = delete;
  rank_compute& operator=(const rank_compute&) = delete;
  virtual ~rank_compute() = default;

  /// Called first on the thread that will call run().
  virtual void prepare_thread() {}
  /// `microbatches`: those of all replicas; at least one in total.
  virtual void begin_step(step_id step, step_purpose purpose,
                          const microbatch_shares& microbatches) = 0;
  /// `input` is the activation (F) or the output gradient (B, BW), undefined at the ends of the
  /// model. Returns the tensor for the neighbour stage, contiguous; undefined if there is none.
  virtual tensor_buffer run(const launch& l, tensor_buffer input) = 0;
  /// Throws an error for `input`, which could not be copied to the device for the reason `why`; the
  /// message adds the state of this rank.
  virtual void fail_input(const std::string& input, const std::string& why) const {
    throw std::runtime_error(input + ": " + why);
  }

  /// As stage_config::forwards_in_order.
  virtual bool forwards_in_order() const { return false; }

  /// The losses of the step; empty on ranks without the last virtual stage.
  virtual std::vector<microbatch_loss> losses() const = 0;
  /// Whether the runtime sums gradients. False: no rank waits for a sum that another one opens.
  virtual bool has_gradients() const { return true; }
  /// The gradient sum, of this replica or another, that this rank has opened and another rank will
  /// continue. Returned once, as soon as this rank has added its own part; nullopt otherwise.
  virtual std::optional<tensor_buffer> take_opened_sum() { return std::nullopt; }
  /// Takes the sum that another rank has opened and this rank continues.
  virtual void join_opened_sum(const tensor_buffer& /*sum*/) {}
  /// Sums the gradients over the replicas. A parameter gets a gradient if any of them has one.
  virtual void sum_gradients(rank_group& replicas) = 0;
  /// The gradient of this rank's side of a tie, for the other stage; nullopt: there is no tie.
  virtual std::optional<tensor_buffer> tied_gradient() const = 0;
  /// none also if both sides are on this rank.
  virtual tie tied_side() const = 0;
  /// Adds the gradient of the other side. `partner`: what tied_gradient() returned there.
  virtual void join_tied(const tensor_buffer& partner) = 0;
  /// The norms that this rank reports for clip_gradients().
  virtual std::vector<parameter_norm> squared_norms() = 0;
  /// Multiplies the gradients by `scale` and updates the parameters; 0: the update is skipped.
  virtual void apply(double scale, double lr) = 0;
  /// Ends an evaluation, or a step of accumulation, whose gradients stay.
  virtual void end_without_update() = 0;
  virtual std::vector<parameter_hash> hashes() const = 0;

  /// The state that a run needs to resume, contiguous and on the host; empty on an emulated device.
  /// Call between steps.
  virtual std::vector<named_buffer> snapshot(tied_copies /*copies*/,
                                             snapshot_memory /*memory*/) const {
    return {};
  }
  /// The names of snapshot(tied_copies::left_out), without the values.
  virtual std::vector<std::string> names() const { return {}; }
  virtual status restore(std::span<const named_buffer>) { return success(); }
  /// The error that restore() would return.
  virtual status fits(std::span<const named_buffer>) const { return success(); }

  /// Bytes held by launches, now and at the peak of the current step.
  virtual std::int64_t held_bytes() const = 0;
  virtual std::int64_t peak_bytes() const = 0;
};

}  // namespace rrfp::compute
