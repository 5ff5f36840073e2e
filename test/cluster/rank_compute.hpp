/// What one rank computes and holds, with symbols for tensors, and what must hold of it: each
/// microbatch contributes once, gradients are folded in the order of the microbatches, and memory
/// stays within its limit.
///
/// It sums gradients by replica, also of microbatches that it runs for others. A sum that it leaves
/// to another rank is an *opened sum*.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <rrfp/core/event.hpp>
#include <rrfp/core/message_header.hpp>

#include "symbols.hpp"
#include "world.hpp"

namespace rrfp::cluster {

class rank_compute {
 public:
  rank_compute(const scenario& c, std::uint32_t run, rank_address at, rank_state initial);

  void begin_step(step_id step, const microbatch_shares& shares);
  step_id step() const { return step_; }
  /// The output of the launch, if it has one. `input`: of an F or B whose input comes from a rank.
  std::optional<symbol> run(const launch& l, symbol input);
  /// By microbatch, on the last virtual stage; else empty.
  std::vector<symbol> losses() const { return losses_; }
  /// Of the step, by replica and chunk: the sums that this rank ends. The step must be complete.
  std::map<replica_id, rank_state> sums() const;
  /// The sum that this rank leaves to another one, once, as soon as it is there; and who goes on
  /// with it.
  std::optional<std::pair<replica_id, rank_state>> take_opened_sum();
  /// Goes on with a sum that another rank has opened.
  void join_opened_sum(const rank_state& sum);
  bool awaits_sum() const { return awaits_sum_; }
  /// The gradients of all replicas, which the update applies.
  void keep_sum(rank_state sum) { gradients_ = std::move(sum); }
  void apply(symbol scale);

  const rank_state& state() const { return weights_; }
  void restore(rank_state state) { weights_ = std::move(state); }
  /// Throws a violation unless all microbatches are folded.
  void require_complete() const;

 private:
  struct saved {
    std::optional<symbol> early_input;
    std::optional<symbol> input;   ///< kept for B
    std::optional<symbol> output;  ///< on the last virtual stage
    std::optional<symbol> weight_gradient;
    std::uint32_t pieces = 0;
    bool is_folded = false;
  };
  /// Of a chunk.
  struct sums_of_chunk {
    std::uint32_t part = 0;    ///< that is folded
    std::uint32_t folded = 0;  ///< of it
    std::map<replica_id, symbol> sums;
    std::vector<symbol> held;  ///< of the part whose sum has not come
  };
  void add(sums_of_chunk& chunk, symbol gradient);
  saved& at(const task& t) { return saved_[c_.widest().index(t.mb, t.chunk)]; }
  std::string name(const task& t) const;
  std::uint64_t bytes_of(microbatch_id mb) const {
    return c_.slot_bytes.empty() ? 0 : c_.slot_bytes[mb.value() % c_.slot_bytes.size()];
  }
  std::optional<symbol> forward(const launch& l, symbol input);
  std::optional<symbol> backward(const task& t, symbol gradient);
  void fold(const launch& l);
  void check_memory(const task& t) const;

  const scenario& c_;
  const std::uint32_t run_;
  const rank_address at_;
  step_id step_;
  rank_state weights_;
  rank_state gradients_;  ///< of all replicas
  microbatch_shares shares_;
  std::vector<sum_part> parts_;
  std::vector<sums_of_chunk> sums_;  ///< by chunk
  bool awaits_sum_ = false;
  bool leaves_sum_ = false;
  std::uint32_t microbatches_ = 0;  ///< of the step
  std::vector<symbol> losses_;
  std::vector<saved> saved_;
  std::vector<std::uint32_t> next_fold_;     ///< by chunk
  std::vector<std::uint32_t> held_;          ///< by microbatch: chunks between F and fold
  std::vector<std::uint32_t> next_forward_;  ///< by chunk
  std::uint32_t slots_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t activations_ = 0;
};

}  // namespace rrfp::cluster
