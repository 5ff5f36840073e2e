/// A run as text, and the proof that the core would run it again.
///
/// The recorder writes what a core is told and what it answers, in the lines of
/// rrfp/schedule/transcript.hpp. replay() tells the events to a fresh core and compares its
/// answers. Nothing here knows whether a simulation or the runtime was recorded.
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

/// Config and policy must be those of the recorded stage; lines that are empty or begin with # are
/// skipped. The error names the first line (counted from 1) that is no event, or where the core
/// answered something else. Events that break the core's protocol abort, as they do in a run.
status replay(const stage_config& config, std::unique_ptr<policy> hint,
              std::span<const std::string> lines);

}  // namespace rrfp::simulate
