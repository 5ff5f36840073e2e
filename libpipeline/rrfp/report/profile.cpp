#include <rrfp/report/profile.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rrfp/base/statistics.hpp>
#include <rrfp/base/units.hpp>
#include <rrfp/report/timeline.hpp>
#include <rrfp/simulate/duration_table.hpp>

namespace rrfp::report {

namespace {

/// One task, or one piece of it, on all ranks of its stage.
struct launched {
  timed_task timed;
  std::uint32_t piece = 0;
  std::uint32_t ranks = 0;
  nanoseconds decided = 0;
  /// On the rank that ended last.
  nanoseconds end = 0;
};

auto order_of(const timed_task& t) {
  return std::tuple{t.step, t.replica, t.stage, t.what.chunk, t.what.mb, t.what.kind};
}

/// Merges neighbours of equal `key` by `merge`.
template <class Key, class Merge>
std::vector<launched> merged_by(const std::vector<launched>& all, Key key, Merge merge) {
  std::vector<launched> made;
  for (const auto& l : all)
    if (made.empty() || key(made.back()) != key(l))
      made.push_back(l);
    else
      merge(made.back(), l);
  return made;
}

/// Whole tasks, ordered by step, replica, stage, chunk, microbatch and kind.
std::vector<launched> launches_of(const traced_run& run, step_id first, step_id last) {
  std::vector<launched> all;
  for (const auto& t : run.tasks)
    // After an early F, the second pass takes as long and sends nothing.
    if (t.step >= first && t.step <= last && t.pass != forward_pass::again)
      all.push_back(
          {{t.replica, t.step, t.stage, t.what, t.end - t.begin, t.end - t.begin - t.delay},
           t.piece.number,
           1,
           t.decided,
           t.end});
  const auto key = [](const launched& l) { return std::tuple{order_of(l.timed), l.piece}; };
  std::ranges::stable_sort(all, {}, key);
  const auto pieces = merged_by(all, key, [](launched& m, const launched& of_rank) {
    m.timed.took = std::max(m.timed.took, of_rank.timed.took);
    m.timed.undelayed = std::max(m.timed.undelayed, of_rank.timed.undelayed);
    m.end = std::max(m.end, of_rank.end);
    ++m.ranks;
  });
  const auto task_key = [](const launched& l) { return order_of(l.timed); };
  return merged_by(pieces, task_key, [](launched& m, const launched& piece) {
    m.timed.took += piece.timed.took;
    m.timed.undelayed += piece.timed.undelayed;
    m.ranks = std::min(m.ranks, piece.ranks);
    m.end = std::max(m.end, piece.end);
  });
}

/// Empty if the launches form a complete step, else the first missing task.
std::string missing_in(const traced_run& run, const launched* begin, const launched* end) {
  const auto& shape = run.shape;
  for (std::uint32_t r = 0; r < run.replicas; ++r)
    for (std::uint32_t s = 0; s < shape.stages; ++s)
      for (std::uint32_t c = 0; c < shape.chunks; ++c)
        for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb) {
          bool there[task_kinds] = {};
          const task any{task_kind::forward, microbatch_id{mb}, chunk_id{c}};
          const auto place = std::tuple{replica_id{r}, stage_id{s}, any.chunk, any.mb};
          for (; begin != end; ++begin) {
            const auto& t = begin->timed;
            if (std::tuple{t.replica, t.stage, t.what.chunk, t.what.mb} != place) break;
            there[static_cast<int>(t.what.kind)] = begin->ranks >= run.ranks;
          }
          const auto has = [&](task_kind k) { return there[static_cast<int>(k)]; };
          auto absent = any;
          if (has(task_kind::forward)) {
            if (has(task_kind::backward_weight)) continue;
            if (has(task_kind::backward) && has(task_kind::weight)) continue;
            absent.kind = has(task_kind::backward) ? task_kind::weight : task_kind::backward;
          }
          return fmt::format("{} of stage {}", to_string(absent), s);
        }
  return "";
}

/// Finds the messages whose receivers waited until the decision for them.
class message_finder {
 public:
  message_finder(const traced_run& run, const std::vector<launched>& launches)
      : shape_(run.shape), launches_(launches) {
    for (const auto& w : run.waits)
      if (ends_with_an_arrival(w.what.why)) woken_.emplace(w.replica, w.stage, w.end);
    for (const auto& l : launches)
      if (l.timed.what.kind != task_kind::weight) ends_[output_of(shape_, l.timed)] = l.end;
  }

  std::vector<timed_message> find() const {
    std::vector<timed_message> found;
    for (const auto& l : launches_) {
      const auto& t = l.timed;
      const auto sender = shape_.producer_of(t.stage, t.what);
      // A transfer within a stage is not a message.
      if (!sender || sender->stage == t.stage) continue;
      auto wanted = output_of(shape_, t);
      const auto to = std::exchange(std::get<virtual_stage_id>(wanted), sender->vs);
      const auto sent = ends_.find(wanted);
      if (sent == ends_.end() || !woken_.contains({t.replica, t.stage, l.decided})) continue;
      // The clocks of two nodes may differ by more than the duration of a message.
      if (l.decided < sent->second) continue;
      found.push_back({t.replica, t.step, to, t.what, l.decided - sent->second});
    }
    return found;
  }

 private:
  const pipeline_shape& shape_;
  const std::vector<launched>& launches_;
  std::set<std::tuple<replica_id, stage_id, nanoseconds>> woken_;
  std::map<task_output, nanoseconds> ends_;
};

/// Milliseconds.
using samples = std::vector<double>;

/// The text in quotes, safe for a TOML comment.
std::string quoted(const std::string& text) {
  auto safe = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::replace(safe.begin(), safe.end(), '\x7f', '?');
  return safe;
}

std::string list_of(const std::vector<double>& values) {
  std::string text;
  for (const auto v : values) text += fmt::format("{}{:.6f}", text.empty() ? "" : ", ", v);
  return "[" + text + "]";
}

std::string row_of(std::string_view what, const samples& s) {
  return fmt::format("#   {:<8}{:>8}{:>14.6f}{:>14.6f}{:>14.6f}\n", what, s.size(),
                     quantile(s, 0.05), median(s), quantile(s, 0.95));
}

/// Undelayed durations by kind, of one virtual stage or of all.
using kinds_of_samples = std::array<samples, task_kinds>;

samples& samples_of(kinds_of_samples& kinds, task_kind k) {
  return kinds[static_cast<std::size_t>(k)];
}

struct cost_lists {
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> weight;
  /// Number of virtual stages whose fused backward was divided.
  std::uint32_t divided = 0;
};

cost_lists costs_of(std::vector<kinds_of_samples>& stages, double backward_share) {
  cost_lists made;
  for (auto& kinds : stages) {
    made.forward.push_back(median(samples_of(kinds, task_kind::forward)));
    const auto& backward = samples_of(kinds, task_kind::backward);
    const auto& weight = samples_of(kinds, task_kind::weight);
    if (!backward.empty() && !weight.empty()) {
      made.backward.push_back(median(backward));
      made.weight.push_back(median(weight));
      continue;
    }
    const auto both = median(samples_of(kinds, task_kind::backward_weight));
    made.backward.push_back(both * backward_share);
    made.weight.push_back(both - made.backward.back());
    ++made.divided;
  }
  return made;
}

std::string counted(std::uint64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : what.ends_with('h') ? "es" : "s");
}

std::string head_of(const profile& p, const std::string& source) {
  return fmt::format(
      R"(# Task durations in {}, run {}:
# {} from {} to {}, {}, {}, {}, {}, {} per stage.
# Milliseconds: medians over microbatches, steps and replicas, one per stage (with chunks, one per
# virtual stage, in the order of the model). The duration of a task is that of its slowest rank,
# without injected delay.
)",
      quoted(source), quoted(p.title), counted(p.steps.size(), "step"), p.steps.front().value(),
      p.steps.back().value(), counted(p.shape.stages, "stage"), counted(p.shape.chunks, "chunk"),
      counted(p.shape.microbatches, "microbatch"), counted(p.replicas, "replica"),
      counted(p.ranks, "rank"));
}

}  // namespace

result<profile> profile_of(const traced_run& run, step_id first, step_id last) {
  if (auto valid = run.shape.validate(); !valid) return valid.failure();
  if (auto there = has_steps(run, first, last); !there) return there.failure();
  const auto launches = launches_of(run, first, last);
  profile made{run.title, run.shape, run.replicas, run.ranks, {}, 0, {}, {}};
  std::string missing;
  std::vector<launched> whole;
  for (auto begin = launches.data(), all = begin + launches.size(); begin != all;) {
    const auto step = begin->timed.step;
    const auto* end = std::find_if(begin, all, [&](const auto& l) { return l.timed.step != step; });
    auto lacks = missing_in(run, begin, end);
    if (lacks.empty()) {
      made.steps.push_back(step);
      whole.insert(whole.end(), begin, end);
    } else {
      ++made.cut_steps;
      if (missing.empty()) missing = fmt::format("step {} without {}", step.value(), lacks);
    }
    begin = end;
  }
  if (whole.empty())
    return error{
        fmt::format("expected a step of run \"{}\" with every task, got {}", run.title, missing)};
  for (const auto& l : whole) made.tasks.push_back(l.timed);
  made.messages = message_finder{run, whole}.find();
  return made;
}

std::string durations_csv(const profile& p) {
  std::map<step_id, step_id> number;
  for (const auto s : p.steps) number.emplace(s, step_id{number.size()});
  simulate::duration_table table{p.shape};
  for (const auto& t : p.tasks)
    if (t.replica == replica_id{0}) table.set_compute(number.at(t.step), t.stage, t.what, t.took);
  for (const auto& m : p.messages)
    if (m.replica == replica_id{0}) table.set_link(number.at(m.step), m.to, m.what, m.took);
  return table.text();
}

std::string cost_toml(const profile& p, const std::string& source, double backward_share) {
  std::vector<kinds_of_samples> stages(p.shape.virtual_stages());
  kinds_of_samples all;
  for (const auto& t : p.tasks) {
    auto& stage = stages[p.shape.virtual_stage(t.stage, t.what.chunk).value()];
    for (auto* kinds : {&stage, &all})
      samples_of(*kinds, t.what.kind).push_back(milliseconds(t.undelayed));
  }
  samples messages;
  for (const auto& m : p.messages) messages.push_back(milliseconds(m.took));

  auto text = head_of(p, source);
  text += fmt::format("#\n#   {:<8}{:>8}{:>14}{:>14}{:>14}\n", "kind", "count", "p5", "p50", "p95");
  for (int k = 0; k < task_kinds; ++k)
    if (const auto kind = static_cast<task_kind>(k); !samples_of(all, kind).empty())
      text += row_of(name(kind), samples_of(all, kind));
  text += messages.empty()
              ? "#\n# No link_ms: no stage waited for a message, so no duration is known.\n"
              : row_of("message", messages) +
                    "#\n# Only messages that a stage waited for are counted; their "
                    "durations include injected delay.\n";
  const auto costs = costs_of(stages, backward_share);
  if (costs.divided > 0)
    text += fmt::format(
        "# {} of {} stages never split their backward (BW): backward_ms is {} of it, weight_ms the "
        "rest.\n# This share is assumed, not measured.\n",
        costs.divided, stages.size(), backward_share);
  text += fmt::format("\n[cost]\nforward_ms = {}\nbackward_ms = {}\nweight_ms = {}\n",
                      list_of(costs.forward), list_of(costs.backward), list_of(costs.weight));
  if (!messages.empty()) text += fmt::format("link_ms = {:.6f}\n", median(messages));
  return text;
}

}  // namespace rrfp::report
