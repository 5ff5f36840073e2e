/// Extra time given one by one: what tasks and messages take on top of anything else.
///
/// The form is that of duration_table.hpp, and a task or a message that is not listed has no extra
/// time; a BW that is not listed has that of its B and its W. Steps beyond those of the file meet
/// it again from its begin: step modulo the largest step listed + 1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <rrfp/simulate/duration_table.hpp>

namespace rrfp::simulate {

/// Thread-safe. Errors are those of duration_table.
class given_delays {
 public:
  static result<given_delays> read(const std::string& file, const pipeline_shape& shape);
  static result<given_delays> parse(std::string_view text, std::string_view file,
                                    const pipeline_shape& shape);

  nanoseconds compute(step_id step, stage_id stage, const task& what) const;
  /// As cost_model::link().
  nanoseconds link(step_id step, virtual_stage_id to, const task& what) const;

 private:
  explicit given_delays(duration_table table);

  step_id listed(step_id step) const;

  duration_table table_;
  std::uint64_t steps_ = 0;
};

}  // namespace rrfp::simulate
