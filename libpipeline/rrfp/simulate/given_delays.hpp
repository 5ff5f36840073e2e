/// Extra time per task and message, read from a file and added to every other cost.
///
/// The file has the form described in duration_table.hpp. A task or message without a row gets no
/// extra time; a BW without a row gets the sum of its B and its W. Steps past the end of the file
/// repeat it from the start: step modulo (largest step listed + 1).
#pragma once

#include <cstdint>
#include <utility>

#include <rrfp/simulate/duration_table.hpp>

namespace rrfp::simulate {

/// Thread-safe.
class given_delays {
 public:
  explicit given_delays(duration_table table) : table_(std::move(table)), steps_(table_.steps()) {}

  nanoseconds compute(step_id step, stage_id stage, const task& t) const;
  /// As cost_model::link().
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const;

 private:
  step_id listed(step_id step) const;

  duration_table table_;
  std::uint64_t steps_;
};

}  // namespace rrfp::simulate
