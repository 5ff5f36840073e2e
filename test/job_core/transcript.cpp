#include "transcript.hpp"

#include <optional>

#include <rrfp/base/step_name.hpp>

#include "core_transcripts.hpp"

namespace rrfp::testing {

namespace {

constexpr std::int64_t ms = 1'000'000;

constexpr const char* phases[] = {
    "created",         "restoring",      "idle",           "stepping",     "updating",
    "waiting_to_save", "copying",        "copying_memory", "handing_over", "hashing_weights",
    "finishing_save",  "reporting_hang", "ended"};
constexpr const char* timers[] = {"watch", "inquiry", "reports", "loss", "drain"};
constexpr const char* demands[] = {"train", "accumulate", "evaluate", "save", "finish"};
constexpr const char* ends[] = {"done", "interrupted", "bad_input", "failed", "node_lost"};
constexpr const char* error_kinds[] = {"bad_input", "failed", "node_lost", "interrupted"};

step_id step_of(words& w) {
  const auto word = w.next();
  const bool evaluates = word[0] == 'e';
  return step_id{std::stoull(word.substr(evaluates ? 1 : 0)) - 1 +
                 (evaluates ? first_evaluation : 0)};
}
stage_key stage_of(words& w) {
  const auto p = w.parts();
  return {replica_id{p.at(0)}, stage_id{p.at(1)}};
}
rank_address rank_of(words& w) {
  const auto p = w.parts();
  return {stage_id{p.at(1)}, rank_id{p.at(2)}, replica_id{p.at(0)}};
}

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
    if (key == "stages")
      o.stages = small;
    else if (key == "ranks")
      o.ranks = small;
    else if (key == "replicas")
      o.replicas = small;
    else if (key == "nodes")
      o.nodes = small;
    else if (key == "absent")
      o.absent = small;
    else if (key == "steps")
      o.steps = value;
    else if (key == "first_step")
      o.first_step = value;
    else if (key == "hang_s")
      o.hang_timeout_s = static_cast<double>(value);
    else if (key == "save_every")
      o.saves = {value, 60'000 * ms};
    else if (key == "eval_every")
      o.evaluation = {value, 1};
    else if (key == "eval_batches")
      o.evaluation.value().batches = small;
    else if (key == "copy_every")
      o.copies = {.every = value};
    else if (key == "copy_ms")
      o.copies.value().time_max = static_cast<std::int64_t>(value) * ms;
    else if (key == "restores") {
      o.copies.value().restores = true;
      o.first_step = value;
    } else if (key == "resumes") {
      o.copies.value().resumes = true;
      o.first_step = value;
    } else if (key == "saved")
      o.copies.value().saved = value;
    else if (key == "evaluated")
      o.copies.value().evaluations = value;
    else if (key == "save_ms")
      o.saves.value().time_max = static_cast<std::int64_t>(value) * ms;
    else
      throw std::invalid_argument("unknown option '" + key + "'");
  }
  return o;
}

job_event::any event_of(const std::string& kind, words& w) {
  using namespace job_event;
  if (kind == "start") return start{};
  if (kind == "stage_ended") {
    const auto step = step_of(w);
    return stage_ended{step, stage_of(w)};
  }
  if (kind == "added_up") return added_up{step_of(w)};
  if (kind == "update_applied") return update_applied{step_of(w)};
  if (kind == "save_opened") return save_opened{w.number()};
  if (kind == "weights_reported") return weights_reported{rank_of(w)};
  if (kind == "weights_agree") return weights_agree{};
  if (kind == "tick") return tick{static_cast<std::int64_t>(w.number()) * ms};
  if (kind == "timer_fired") {
    const auto which = w.one_of<job_timer>(timers);
    return timer_fired{which, w.more() ? w.number() : 0};
  }
  if (kind == "demanded") return demanded{w.one_of<job_demand>(demands)};
  if (kind == "batch_given") return batch_given{step_of(w)};
  if (kind == "snapshot_taken") return snapshot_taken{w.number()};
  if (kind == "snapshot_written") {
    const auto step = w.number();
    return snapshot_written{step, w.rest()};
  }
  if (kind == "save_ended") {
    const auto step = w.number();
    return save_ended{step, w.rest()};
  }
  if (kind == "state_restored") return state_restored{};
  if (kind == "copy_taken") return copy_taken{w.number()};
  if (kind == "copy_held") {
    const auto step = w.number();
    return copy_held{step, w.rest()};
  }
  if (kind == "interrupted") return interrupted{w.more() && w.next() == "again"};
  if (kind == "drain_asked") return drain_asked{node_id{static_cast<std::uint32_t>(w.number())}};
  if (kind == "node_waits") return node_waits{node_id{static_cast<std::uint32_t>(w.number())}};
  if (kind == "failed" || kind == "suspected") {
    const auto what = w.one_of<error_kind>(error_kinds);
    const error why{w.rest(), what};
    if (kind == "failed") return failed{why};
    return suspected{why};
  }
  if (kind == "report_requested") return report_requested{w.rest()};
  if (kind == "progress_reported") return progress_reported{stage_of(w)};
  throw std::invalid_argument("unknown event '" + kind + "'");
}

std::string text_of(step_id s) {
  return (is_evaluation(s) ? "e" : "") + std::to_string(number_of(s));
}
std::string told(const std::string& text) { return text.empty() ? "" : ": " + text; }

std::string line_of(const job_action::begin_step& a) {
  return "begin_step " + text_of(a.step) + (a.accumulates ? " accumulates" : "") +
         (a.gradients_wait ? " gradients_wait" : "");
}
std::string line_of(const job_action::add_up& a) { return "add_up " + text_of(a.step); }
std::string line_of(const job_action::apply_update& a) { return "apply_update " + text_of(a.step); }
std::string line_of(const job_action::finish_step& a) { return "finish_step " + text_of(a.step); }
std::string line_of(const job_action::state_ready&) { return "state_ready"; }
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
std::string line_of(const job_action::restore_state&) { return "restore_state"; }
std::string line_of(const job_action::copy_state& a) {
  return "copy_state " + std::to_string(a.step) + " complete " + std::to_string(a.complete);
}
std::string line_of(const job_action::keep_copies& a) {
  return "keep_copies " + std::to_string(a.step);
}
std::string line_of(const job_action::drop_copies& a) {
  return "drop_copies " + std::to_string(a.step) + told(a.failure);
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
         (a.nothing_lost ? " nothing_lost" : "") + (a.hung ? " hung" : "") +
         (a.drained ? " drained " + std::to_string(a.drained->value()) : "") + told(a.message);
}

std::string actions_of(job_core& core, const job_event::any& e, std::int64_t now) {
  std::string out;
  const auto before = core.phase();
  for (const auto& a : core.on(e, now)) out += "  " + to_line(a) + "\n";
  if (core.phase() != before)
    out += std::string{"  -> "} + phases[static_cast<int>(core.phase())] + "\n";
  return out;
}

}  // namespace

std::string to_line(const job_action::any& a) {
  return std::visit([](const auto& x) { return line_of(x); }, a);
}

std::string replayed(const std::string& text) {
  std::optional<job_core> core;
  std::int64_t now = 0;
  return replay(text, [&](words& w) -> std::string {
    const auto kind = w.next();
    if (kind == "job") {
      core.emplace(options_of(w));
      now = 0;
      return {};
    }
    if (kind == "at") {
      now = static_cast<std::int64_t>(w.number()) * ms;
      return {};
    }
    return actions_of(core.value(), event_of(kind, w), now);
  });
}

}  // namespace rrfp::testing
