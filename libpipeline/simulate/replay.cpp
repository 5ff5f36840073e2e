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
  std::span<const action> answers;
  std::size_t number = 0;
  const auto at_line = [&](const std::string& expected, const std::string& got) {
    return error{"line " + std::to_string(number) + ": expected " + expected + ", got " + got};
  };
  for (const auto& line : lines) {
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    if (is_action(line)) {
      if (answers.empty()) return at_line("'" + line + "'", "no further action of the core");
      if (const auto answer = to_line(answers.front()); answer != line)
        return at_line("'" + line + "'", "'" + answer + "'");
      answers = answers.subspan(1);
      continue;
    }
    if (!answers.empty()) return at_line("'" + line + "'", "'" + to_line(answers.front()) + "'");
    const auto told = parse_event(line);
    if (!told) return error{"line " + std::to_string(number) + ": " + told.message()};
    answers = core.on(*told);
  }
  ++number;
  if (!answers.empty()) return at_line("the end", "'" + to_line(answers.front()) + "'");
  return success();
}

}  // namespace rrfp::simulate
