/// What a supervisor records of its stage besides the core: when inputs arrived, when launches were
/// decided, and the last decisions.
///
/// It decides nothing. It is always on, so an entry must cost only nanoseconds. Times are
/// nanoseconds since the run began. Not thread-safe; used by the supervisor alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/core/event.hpp>
#include <rrfp/core/stage_core.hpp>

namespace rrfp::actors {

class stage_ledger {
 public:
  /// How many decisions are kept.
  static constexpr std::size_t decisions_max = 256;

  explicit stage_ledger(const stage_config& config);

  void begin(step_id step, std::uint32_t microbatches);
  /// Records an input. Returns the time from its arrival on the first rank to that on the last one;
  /// nothing if it has not arrived on all ranks yet.
  std::optional<std::int64_t> arrive(const input_arrived& input, std::int64_t now);
  void decide(const action& a, std::int64_t now);

  /// When a launch of this step was decided; nothing if it never was.
  std::optional<std::int64_t> decided_at(launch_seq seq) const;
  /// One line a decision, the oldest first.
  std::vector<std::string> decisions() const;

 private:
  struct decision {
    std::int64_t at = 0;
    step_id step;
    action chosen;
  };
  struct input_record {
    std::uint32_t ranks = 0;
    std::int64_t first = 0;
  };

  pipeline_shape shape_;  ///< of the step
  const std::uint32_t ranks_;
  step_id step_;
  std::vector<input_record> inputs_;      ///< by 2 * index() + is F
  launch_seq first_seq_;                  ///< of the step
  std::vector<std::int64_t> decided_at_;  ///< by seq - first_seq_
  std::array<decision, decisions_max> decisions_;
  std::uint64_t decided_ = 0;
};

}  // namespace rrfp::actors
