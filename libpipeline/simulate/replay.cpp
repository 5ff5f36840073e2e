#include <rrfp/simulate/replay.hpp>

#include <string_view>

#include <rrfp/schedule/transcript.hpp>

namespace rrfp::simulate {

namespace {

bool is_action(std::string_view line) {
  return line.starts_with("launch ") || line.starts_with("wait ");
}

}  // namespace

void transcript_recorder::on_event(stage_id stage, nanoseconds, const event& e) {
  lines_[stage.value()].push_back(to_line(e));
}

void transcript_recorder::on_actions(stage_id stage, nanoseconds, std::span<const action> actions) {
  for (const auto& a : actions) lines_[stage.value()].push_back(to_line(a));
}

status replay(const stage_config& config, std::unique_ptr<policy> hint,
              std::span<const std::string> lines) {
  stage_core core{config, std::move(hint)};
  std::span<const action> actions;
  std::size_t number = 0;
  const auto at_line = [&](const std::string& expected, const std::string& got) {
    return error{"line " + std::to_string(number) + ": expected " + expected + ", got " + got};
  };
  for (const auto& line : lines) {
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    if (is_action(line)) {
      if (actions.empty()) return at_line("'" + line + "'", "no further action");
      if (const auto action_text = to_line(actions.front()); action_text != line)
        return at_line("'" + line + "'", "'" + action_text + "'");
      actions = actions.subspan(1);
      continue;
    }
    if (!actions.empty()) return at_line("'" + line + "'", "'" + to_line(actions.front()) + "'");
    const auto parsed = parse_event(line);
    if (!parsed) return error{"line " + std::to_string(number) + ": " + parsed.message()};
    actions = core.on(*parsed);
  }
  ++number;
  if (!actions.empty()) return at_line("the end", "'" + to_line(actions.front()) + "'");
  return success();
}

}  // namespace rrfp::simulate
