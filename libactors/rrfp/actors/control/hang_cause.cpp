#include "hang_cause.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::actors {

namespace {

using place = stage_key;

bool is_one(rank_set ranks) { return (ranks & (ranks - 1)) == 0; }
const char* has(rank_set ranks) { return is_one(ranks) ? "has" : "have"; }

/// "rank 1" or "ranks 0, 3"
std::string to_text(rank_set ranks) {
  std::string text;
  for (std::uint32_t r = 0; r < 64; ++r)
    if ((ranks >> r & 1) != 0) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return (is_one(ranks) ? "rank " : "ranks ") + text;
}

/// Separates a root cause from its consequence.
constexpr std::string_view consequence = " (so ";

class tracer {
 public:
  tracer(const job_dimensions& job, const std::vector<stage_state>& states) : job_(job) {
    for (const auto& s : states) states_[{s.replica, s.stage}] = &s;
  }

  std::vector<std::string> causes() {
    for (std::uint32_t d = 0; d < job_.replicas; ++d)
      for (std::uint32_t s = 0; s < job_.shape.stages; ++s) {
        visited_.clear();
        const place here{replica_id{d}, stage_id{s}};
        auto cause = cause_of_stage(here);
        if (cause.empty()) continue;
        // Causes with the same root are one; the text with a consequence says more.
        auto& entry = votes_[cause.substr(0, cause.find(consequence))];
        ++entry.count;
        if (cause.size() > entry.text.size()) entry.text = std::move(cause);
      }
    std::vector<votes> sorted;
    for (auto& [root, entry] : votes_) sorted.push_back(std::move(entry));
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.count > b.count; });
    std::vector<std::string> causes;
    for (auto& entry : sorted) causes.push_back(std::move(entry.text));
    return causes;
  }

  /// The next task of a microbatch that holds a slot on this stage.
  std::optional<task> next_of(const stage_state& s, microbatch_id mb) const {
    for (const auto kind : {task_kind::forward, task_kind::backward, task_kind::weight})
      for (std::uint32_t c = 0; c < job_.shape.chunks; ++c)
        if (const task t{kind, mb, chunk_id{c}}; !s.core.is_done(t) && !s.core.own_task_before(t))
          return t;
    return std::nullopt;
  }

  rank_set missing_input(const stage_state& s, const task& t) const {
    const bool forward = t.kind == task_kind::forward;
    if (!forward && !job_.shape.producer_of(s.stage, t)) return 0;
    const auto& inputs = s.core.progress_of(t.mb, t.chunk);
    return all_ranks(job_.ranks) & ~(forward ? inputs.activation : inputs.gradient);
  }

  std::string name_of(place p) const {
    if (job_.replicas == 1) return fmt::format("stage {}", p.stage.value());
    return fmt::format("replica {} stage {}", p.replica.value(), p.stage.value());
  }

 private:
  std::string cause_of_stage(place here) {
    const auto at = states_.find(here);
    if (at == states_.end()) return name_of(here) + " does not answer";
    const auto& s = *at->second;
    switch (s.phase) {
      case stage_phase::idle: return {};
      case stage_phase::ending:
        return fmt::format(
            "{}: {} of {} not ended {}: waiting for gradients of replicas or of the stage of a "
            "tied parameter",
            name_of(here), to_text(s.not_ended), job_.ranks, to_string(s.core.step));
      case stage_phase::updating:
        return fmt::format("{}: the update of {} has not finished", name_of(here),
                           to_string(s.core.step));
      case stage_phase::running: break;
    }
    if (s.awaits_batch) return cause_of_no_batch(here, s);
    if (!s.core.running.empty()) return cause_of_launch(here, s);
    const auto& waiting = s.core.waiting;
    if (!s.core.waits || waiting.why == wait_cause::complete) return {};
    if (waiting.why == wait_cause::memory) return cause_of_missing_slot(here, s, waiting.head);
    return cause_of_task(here, waiting.head);
  }

  /// Why `t` is not finished at `here`.
  std::string cause_of_task(place here, const task& t) {
    if (!visited_.insert({here, t}).second) return {};
    const auto at = states_.find(here);
    if (at == states_.end()) return name_of(here) + " does not answer";
    const auto& s = *at->second;
    if (s.phase == stage_phase::idle || s.phase == stage_phase::updating) return {};
    if (s.awaits_batch) return cause_of_no_batch(here, s);
    // A stage runs its launches in order, so the first unfinished launch delays all that follow.
    if (!s.core.running.empty()) return cause_of_launch(here, s);
    if (const auto own = s.core.own_task_before(t)) return cause_of_task(here, *own);
    if (const auto missing = missing_input(s, t); missing != 0)
      return cause_of_missing_input(here, t, missing);
    // All inputs are here and the task does not run.
    const auto& waiting = s.core.waiting;
    if (s.core.waits && waiting.why == wait_cause::memory) return cause_of_missing_slot(here, s, t);
    if (s.core.waits && waiting.head != t) return cause_of_task(here, waiting.head);
    return fmt::format("{}: {} of {} is ready and not launched", name_of(here), to_string(t),
                       to_string(s.core.step));
  }

  std::string cause_of_no_batch(place here, const stage_state& s) const {
    return fmt::format("{}: its program has not given the batch of {}", name_of(here),
                       to_string(s.core.step));
  }

  std::string cause_of_launch(place here, const stage_state& s) const {
    const auto& [launched, behind] = s.core.running.front();
    const auto waiting = behind & s.in_collective;
    const auto missing = behind & ~s.in_collective;
    if (waiting != 0 && missing != 0)
      return fmt::format(
          "{} {} not entered the collective of {}, {}, that {} {} in; launched "
          "{:.1f} s ago",
          name_of(here) + " " + to_text(missing), has(missing), to_string(launched.what),
          to_string(s.core.step), to_text(waiting), is_one(waiting) ? "is" : "are",
          seconds(s.ages.front()));
    auto text = fmt::format(
        "{} {} not finished {} of {}, launched {:.1f} s ago", name_of(here) + " " + to_text(behind),
        has(behind), to_string(launched.what), to_string(s.core.step), seconds(s.ages.front()));
    if (const auto done = all_ranks(job_.ranks) & ~behind; done != 0)
      text += fmt::format("; {} finished it", to_text(done));
    return text;
  }

  std::string cause_of_missing_input(place here, const task& t, rank_set missing) {
    // The data of the first part is never missing: it counts as arrived when a step begins.
    const auto producer = job_.shape.producer_of(here.stage, t).value();
    const place from{here.replica, producer.stage};
    const task wanted{t.kind, t.mb, producer.what.chunk};
    const auto at = states_.find(from);
    const auto step = states_.at(here)->core.step;
    const bool left =
        at != states_.end() && at->second->core.step >= step &&
        (at->second->phase == stage_phase::idle || at->second->core.has_sent_output_of(wanted));
    if (!left) return cause_of_task(from, wanted);
    return fmt::format("the {} for {} left {} and has not arrived at {} {}, {}",
                       t.kind == task_kind::forward ? "activation" : "gradient", to_string(t),
                       name_of(from), name_of(here), to_text(missing), to_string(step));
  }

  std::string cause_of_missing_slot(place here, const stage_state& s, const task& t) {
    for (const auto mb : s.core.holders) {
      const auto next = next_of(s, mb);
      if (!next) continue;
      const auto why = cause_of_task(here, *next);
      if (why.empty()) continue;
      return fmt::format("{}{}microbatch {} never releases the slot that {} of {} waits for)", why,
                         consequence, mb.value(), to_string(t), name_of(here));
    }
    return fmt::format("{}: no slot for {}", name_of(here), to_string(t));
  }

  const job_dimensions& job_;
  std::map<place, const stage_state*> states_;
  std::set<std::pair<place, task>> visited_;
  struct votes {
    int count = 0;
    std::string text;
  };
  std::map<std::string, votes> votes_;  ///< by root cause
};

}  // namespace

std::vector<std::string> causes_of(const job_dimensions& job,
                                   const std::vector<stage_state>& states) {
  return tracer{job, states}.causes();
}

std::vector<std::string> details_of(const job_dimensions& job, const stage_state& s) {
  const std::vector<stage_state> alone{s};
  const tracer trace{job, alone};
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < s.core.running.size(); ++i) {
    const auto& [launched, behind] = s.core.running[i];
    lines.push_back(fmt::format("launch {} {}, {:.3f} s ago, not finished on {}",
                                launched.seq.value(), to_string(launched.what), seconds(s.ages[i]),
                                to_text(behind)));
  }
  if (s.phase == stage_phase::ending && s.not_ended != 0)
    lines.push_back("step not ended on " + to_text(s.not_ended));
  if (const auto& head = s.core.waiting.head;
      s.core.waits && s.core.waiting.why != wait_cause::complete)
    if (const auto missing = trace.missing_input(s, head); missing != 0) {
      const auto producer = job.shape.producer_of(s.stage, head);
      lines.push_back(fmt::format(
          "input of {} from {} is missing on {}", to_string(head),
          producer ? trace.name_of({s.replica, producer->stage}) : "the data", to_text(missing)));
    }
  for (const auto mb : s.core.holders) {
    const auto next = trace.next_of(s, mb);
    const auto missing = next ? trace.missing_input(s, *next) : 0;
    auto line = fmt::format("slot held by microbatch {}", mb.value());
    if (next) line += fmt::format(", whose next task is {}", to_string(*next));
    if (missing != 0) line += fmt::format(" (input missing on {})", to_text(missing));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace rrfp::actors
