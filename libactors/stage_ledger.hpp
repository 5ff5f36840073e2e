/// What a supervisor records of its stage for reports, besides the core: which inputs are on which
/// ranks, which ranks have not finished which launches, which microbatches hold slots, and the last
/// decisions.
///
/// It decides nothing. It is always on, so an entry must cost only nanoseconds. Times are
/// nanoseconds since the run began. Not thread-safe; used by the supervisor alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/stage_core.hpp>

#include "stage_state.hpp"

namespace rrfp::actors {

class stage_ledger {
 public:
  /// How many decisions are kept.
  static constexpr std::size_t decisions_max = 256;

  explicit stage_ledger(const stage_config& config);

  void begin(step_id step);
  /// Records an input. Returns the time from its arrival on the first rank to that on the last one;
  /// nothing if it has not arrived on all ranks yet.
  std::optional<std::int64_t> arrive(const input_arrived& input, std::int64_t now);
  void decide(const action& a, std::int64_t now);
  void finish(launch_seq seq, rank_id rank);

  /// When the unfinished launch was decided.
  std::int64_t decided_at(launch_seq seq) const;
  /// Fills in the fields that the ledger records.
  void describe(stage_state& state, std::int64_t now) const;
  /// One line a decision, the oldest first.
  std::vector<std::string> decisions() const;

 private:
  struct in_flight {
    launch launched;
    std::int64_t decided = 0;
    rank_set behind = 0;
  };
  struct decision {
    std::int64_t at = 0;
    step_id step;
    action chosen;
  };
  struct input_record {
    rank_set ranks = 0;
    std::int64_t first = 0;
  };

  std::size_t index(microbatch_id mb, chunk_id chunk) const {
    return std::size_t{chunk.value()} * shape_.microbatches + mb.value();
  }
  void fold(const launch& l);

  const pipeline_shape shape_;
  const rank_set all_ranks_;
  step_id step_;
  std::vector<input_record> activations_;
  std::vector<input_record> gradients_;
  std::vector<std::uint8_t> finished_;
  std::vector<std::uint32_t> chunks_held_;  ///< of each microbatch that has a slot
  std::vector<bool> holds_;
  std::vector<in_flight> flights_;
  std::array<decision, decisions_max> decisions_;
  std::uint64_t decided_ = 0;
};

}  // namespace rrfp::actors
