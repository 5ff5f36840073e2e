/// Records a run as text, and checks that the core repeats it.
///
/// The recorder writes the events that a core receives and the actions that it returns, in the
/// format of rrfp/core/transcript.hpp. replay() feeds the events to a new core and compares its
/// actions. Nothing here depends on whether the recording comes from the simulator or the runtime.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rrfp/core/transcript.hpp>
#include <rrfp/simulate/simulator.hpp>

#include "parse_event.hpp"

namespace rrfp::simulate {

/// The lines of every stage of a run.
class transcript_recorder final : public observer {
 public:
  explicit transcript_recorder(std::uint32_t stages) : lines_(stages) {}

  std::span<const std::string> lines(stage_id stage) const { return lines_[stage.value()]; }

  void on_event(stage_id stage, nanoseconds, const event& e) override {
    lines_[stage.value()].push_back(to_line(e));
  }
  void on_actions(stage_id stage, nanoseconds, std::span<const action> actions) override {
    for (const auto& a : actions) lines_[stage.value()].push_back(to_line(a));
  }

 private:
  std::vector<std::vector<std::string>> lines_;
};

/// `config` and `make_policy` must be those of the recorded stage. Lines that are empty or begin
/// with # are skipped. The error names the first line (counted from 1) that is not an event, or
/// where the action differs. Events that break the core's protocol abort, as they do in a run.
inline status replay(const stage_config& config, policy_factory make_policy,
                     std::span<const std::string> lines) {
  stage_core core{config, std::move(make_policy)};
  std::span<const action> actions;
  std::size_t number = 0;
  const auto at_line = [&](const std::string& expected, const std::string& got) {
    return error{"line " + std::to_string(number) + ": expected " + expected + ", got " + got};
  };
  for (const auto& line : lines) {
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    if (line.starts_with("launch ") || line.starts_with("wait ")) {
      if (actions.empty()) return at_line("'" + line + "'", "no further action");
      if (const auto action_text = to_line(actions.front()); action_text != line)
        return at_line("'" + line + "'", "'" + action_text + "'");
      actions = actions.subspan(1);
      continue;
    }
    if (!actions.empty()) return at_line("'" + line + "'", "'" + to_line(actions.front()) + "'");
    const auto parsed = rrfp::testing::parse_event(line);
    if (!parsed) return error{"line " + std::to_string(number) + ": " + parsed.message()};
    actions = core.on(*parsed);
  }
  ++number;
  if (!actions.empty()) return at_line("the end", "'" + to_line(actions.front()) + "'");
  return success();
}

}  // namespace rrfp::simulate
