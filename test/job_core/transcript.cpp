#include "transcript.hpp"

#include <optional>
#include <sstream>
#include <stdexcept>

#include <rrfp/base/step_name.hpp>

namespace rrfp::testing {

namespace {

constexpr std::int64_t ms = 1'000'000;

constexpr const char* timers[] = {"watch", "inquiry", "reports", "loss"};
constexpr const char* demands[] = {"train", "evaluate", "save", "finish"};
constexpr const char* ends[] = {"done", "interrupted", "bad_input", "failed", "node_lost"};
constexpr const char* error_kinds[] = {"bad_input", "failed", "node_lost", "interrupted"};

/// The words of one line; what is not expected throws.
class words {
 public:
  explicit words(const std::string& line) : in_(line) {}

  std::string next() {
    std::string word;
    if (!(in_ >> word)) throw std::invalid_argument("expected another word");
    return word;
  }
  bool more() { return !(in_ >> std::ws).eof(); }
  std::string rest() {
    std::string text;
    if (more()) std::getline(in_, text);
    return text;
  }
  std::uint64_t number() { return std::stoull(next()); }
  step_id step() {
    const auto word = next();
    const bool evaluates = word[0] == 'e';
    return step_id{std::stoull(word.substr(evaluates ? 1 : 0)) - 1 +
                   (evaluates ? first_evaluation : 0)};
  }
  template <class Enum, std::size_t N>
  Enum one_of(const char* const (&names)[N]) {
    const auto word = next();
    for (std::size_t i = 0; i < N; ++i)
      if (word == names[i]) return static_cast<Enum>(i);
    throw std::invalid_argument("unknown word '" + word + "'");
  }
  /// "0.1.2"
  std::vector<std::uint32_t> parts() {
    std::istringstream in{next()};
    std::vector<std::uint32_t> all;
    for (std::string part; std::getline(in, part, '.');)
      all.push_back(static_cast<std::uint32_t>(std::stoul(part)));
    return all;
  }
  stage_key stage() {
    const auto p = parts();
    return {replica_id{p.at(0)}, stage_id{p.at(1)}};
  }
  rank_key rank() {
    const auto p = parts();
    return {replica_id{p.at(0)}, stage_id{p.at(1)}, rank_id{p.at(2)}};
  }

 private:
  std::istringstream in_;
};

job_core_options options_of(words& w) {
  job_core_options o;
  while (w.more()) {
    const auto key = w.next();
    if (key == "on_request") {
      o.on_request = true;
      continue;
    }
    const auto value = w.number();
    const auto small = static_cast<std::uint32_t>(value);
    if (key == "nodes")
      o.nodes = small;
    else if (key == "stages")
      o.stages = small;
    else if (key == "ranks")
      o.ranks = small;
    else if (key == "replicas")
      o.replicas = small;
    else if (key == "steps")
      o.steps = value;
    else if (key == "first_step")
      o.first_step = value;
    else if (key == "hang_s")
      o.hang_timeout_s = static_cast<double>(value);
    else if (key == "save_every")
      o.saves = {value, 60'000 * ms};
    else if (key == "save_ms")
      o.saves.value().time_max = static_cast<std::int64_t>(value) * ms;
    else
      throw std::invalid_argument("unknown option '" + key + "'");
  }
  return o;
}

job_event::any event_of(words& w) {
  using namespace job_event;
  const auto kind = w.next();
  if (kind == "start") return start{};
  if (kind == "supervisors_hosted") {
    supervisors_hosted e;
    while (w.more()) e.stages.push_back(w.stage());
    return e;
  }
  if (kind == "ranks_hosted") {
    ranks_hosted e;
    while (w.more()) e.ranks.push_back(w.rank());
    return e;
  }
  if (kind == "stage_ended") {
    const auto step = w.step();
    return stage_ended{step, w.stage()};
  }
  if (kind == "added_up") return added_up{w.step()};
  if (kind == "update_applied") return update_applied{w.step()};
  if (kind == "save_opened") return save_opened{w.number()};
  if (kind == "weights_reported") return weights_reported{w.rank()};
  if (kind == "weights_agree") return weights_agree{};
  if (kind == "tick") return tick{static_cast<std::int64_t>(w.number()) * ms};
  if (kind == "timer_fired") {
    const auto which = w.one_of<job_timer>(timers);
    return timer_fired{which, w.more() ? w.number() : 0};
  }
  if (kind == "demanded") return demanded{w.one_of<job_demand>(demands)};
  if (kind == "snapshot_taken") return snapshot_taken{w.number()};
  if (kind == "snapshot_written") {
    const auto step = w.number();
    return snapshot_written{step, w.rest()};
  }
  if (kind == "save_ended") {
    const auto step = w.number();
    return save_ended{step, w.rest()};
  }
  if (kind == "interrupted") return interrupted{w.more() && w.next() == "again"};
  if (kind == "failed" || kind == "suspected") {
    const auto what = w.one_of<error_kind>(error_kinds);
    const error why{w.rest(), what};
    if (kind == "failed") return failed{why};
    return suspected{why};
  }
  if (kind == "report_requested") return report_requested{w.rest()};
  if (kind == "progress_reported") return progress_reported{w.stage()};
  throw std::invalid_argument("unknown event '" + kind + "'");
}

std::string text_of(step_id s) {
  return (is_evaluation(s) ? "e" : "") + std::to_string(number_of(s));
}
std::string told(const std::string& text) { return text.empty() ? "" : ": " + text; }

std::string line_of(const job_action::host_supervisors&) { return "host_supervisors"; }
std::string line_of(const job_action::host_ranks&) { return "host_ranks"; }
std::string line_of(const job_action::assign_ranks&) { return "assign_ranks"; }
std::string line_of(const job_action::begin_step& a) { return "begin_step " + text_of(a.step); }
std::string line_of(const job_action::add_up& a) { return "add_up " + text_of(a.step); }
std::string line_of(const job_action::apply_update& a) { return "apply_update " + text_of(a.step); }
std::string line_of(const job_action::finish_step& a) { return "finish_step " + text_of(a.step); }
std::string line_of(const job_action::open_save& a) {
  return "open_save " + std::to_string(a.step);
}
std::string line_of(const job_action::take_snapshot& a) {
  return "take_snapshot " + std::to_string(a.step);
}
std::string line_of(const job_action::commit_save& a) {
  return "commit_save " + std::to_string(a.step);
}
std::string line_of(const job_action::end_save& a) {
  return "end_save " + std::to_string(a.step) + (a.overdue ? " overdue" : "") + told(a.failure);
}
std::string line_of(const job_action::report_weights&) { return "report_weights"; }
std::string line_of(const job_action::compare_weights&) { return "compare_weights"; }
std::string line_of(const job_action::ask_progress& a) {
  const auto silence = a.silence == 0 ? "" : " silence " + std::to_string(a.silence / ms);
  return "ask_progress " + std::to_string(a.number) + silence + told(a.why);
}
std::string line_of(const job_action::write_reports& a) {
  return "write_reports " + std::to_string(a.number) + (a.hang ? " hang" : "");
}
std::string line_of(const job_action::note_progress&) { return "note_progress"; }
std::string line_of(const job_action::set_timer& a) {
  const auto number = a.number == 0 ? "" : " number " + std::to_string(a.number);
  return std::string{"set_timer "} + timers[static_cast<int>(a.which)] + " " +
         std::to_string(a.ms) + number;
}
std::string line_of(const job_action::end& a) {
  return std::string{"end "} + ends[static_cast<int>(a.how)] +
         (a.nothing_lost ? " nothing_lost" : "") + (a.hung ? " hung" : "") + told(a.message);
}

std::string actions_of(job_core& core, const job_event::any& e, std::int64_t now) {
  std::string out;
  const auto before = core.phase();
  for (const auto& a : core.on(e, now)) out += "  " + to_line(a) + "\n";
  if (core.phase() != before) out += "  -> " + std::string{name(core.phase())} + "\n";
  return out;
}

}  // namespace

std::string to_line(const job_action::any& a) {
  return std::visit([](const auto& x) { return line_of(x); }, a);
}

std::string replayed(const std::string& text) {
  std::istringstream lines{text};
  std::string out;
  std::optional<job_core> core;
  std::int64_t now = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(' ')) continue;
    out += line + "\n";
    if (line.empty() || line[0] == '#') continue;
    words w{line};
    try {
      if (line.starts_with("job ")) {
        w.next();
        core.emplace(options_of(w));
        now = 0;
      } else if (line.starts_with("at ")) {
        w.next();
        now = static_cast<std::int64_t>(w.number()) * ms;
      } else {
        out += actions_of(core.value(), event_of(w), now);
      }
    } catch (const std::exception& problem) {
      out += std::string{"  error: "} + problem.what() + "\n";
    }
  }
  return out;
}

}  // namespace rrfp::testing
