/// Records a run as text, and checks that the core repeats it.
///
/// The recorder writes the events that a core receives and the actions that it returns, in the
/// format of rrfp/schedule/transcript.hpp. replay() feeds the events to a new core and compares its
/// actions. Nothing here depends on whether the recording comes from the simulator or the runtime.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

/// The lines of every stage of a run.
class transcript_recorder final : public observer {
 public:
  explicit transcript_recorder(std::uint32_t stages) : lines_(stages) {}

  std::span<const std::string> lines(stage_id stage) const { return lines_[stage.value()]; }

  void on_event(stage_id stage, nanoseconds at, const event& e) override;
  void on_actions(stage_id stage, nanoseconds at, std::span<const action> actions) override;

 private:
  std::vector<std::vector<std::string>> lines_;
};

/// `config` and `hint` must be those of the recorded stage. Lines that are empty or begin with #
/// are skipped. The error names the first line (counted from 1) that is not an event, or where the
/// action differs. Events that break the core's protocol abort, as they do in a run.
status replay(const stage_config& config, std::unique_ptr<policy> hint,
              std::span<const std::string> lines);

}  // namespace rrfp::simulate
