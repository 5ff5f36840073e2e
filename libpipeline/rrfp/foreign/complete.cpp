/// What a run of any source gets once its tasks have their places: whole steps, clocks, slots,
/// waits.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>

#include "assemble.hpp"

namespace rrfp::foreign {

namespace {

/// Which tasks of a step a stage has, by chunk and microbatch.
using task_set = std::set<std::tuple<chunk_id, microbatch_id, task_kind>>;

/// The first task that a whole step has beside these.
std::optional<task> missing_in(const task_set& tasks, const pipeline_shape& shape) {
  for (std::uint32_t c = 0; c < shape.chunks; ++c)
    for (std::uint32_t m = 0; m < shape.microbatches; ++m) {
      const chunk_id chunk{c};
      const microbatch_id mb{m};
      const auto has = [&](task_kind k) { return tasks.contains({chunk, mb, k}); };
      if (!has(task_kind::forward)) return task{task_kind::forward, mb, chunk};
      if (has(task_kind::backward_weight)) continue;
      if (!has(task_kind::backward)) return task{task_kind::backward_weight, mb, chunk};
      if (!has(task_kind::weight)) return task{task_kind::weight, mb, chunk};
    }
  return std::nullopt;
}

/// Keeps the steps that are whole on all stages, and numbers them from 1, as users do.
status keep_whole_steps(std::vector<placed_record>& records, found_run& made) {
  const auto& run = made.run;
  std::map<step_id, std::map<std::pair<replica_id, stage_id>, task_set>> steps;
  for (const auto& r : records)
    steps[r.step][{r.replica, r.stage}].emplace(r.what.chunk, r.what.mb, r.what.kind);
  std::map<step_id, step_id> kept;
  std::string lacks;
  for (auto& [step, stages] : steps) {
    bool whole = true;
    for (std::uint32_t r = 0; whole && r < run.replicas; ++r)
      for (std::uint32_t s = 0; whole && s < run.shape.stages; ++s) {
        const auto missing = missing_in(stages[{replica_id{r}, stage_id{s}}], run.shape);
        whole = !missing;
        if (missing) lacks = fmt::format("{} of stage {}", to_string(*missing), s);
      }
    if (whole) kept.emplace(step, step_id{kept.size() + 1});
  }
  if (kept.empty())
    return error{
        fmt::format("{}: expected a step with every task on all {} stages, got none of {}, the "
                    "last one without {}: record a whole step on every rank",
                    made.file, run.shape.stages, steps.size(), lacks)};
  if (kept.size() < steps.size())
    made.notes.push_back(fmt::format("{} of {} steps are left out: tasks are missing in them.",
                                     steps.size() - kept.size(), steps.size()));
  std::erase_if(records, [&](const auto& r) { return !kept.contains(r.step); });
  for (auto& r : records) r.step = kept.at(r.step);
  return success();
}

/// Tasks of a run by what they put out: what their consumers look up.
class outputs {
 public:
  outputs(const std::vector<placed_record>& records, const pipeline_shape& shape) : shape_(shape) {
    for (const auto& r : records)
      if (r.what.kind != task_kind::weight) ends_[output_of(shape, r)] = r.end;
  }

  /// When the task ended whose output this one needs, and on which stage; nothing: it needs none.
  std::optional<std::pair<stage_id, nanoseconds>> needed_by(const report::traced_task& t) const {
    const auto producer = shape_.producer_of(t.stage, t.what);
    if (!producer) return std::nullopt;
    auto wanted = output_of(shape_, t);
    std::get<virtual_stage_id>(wanted) = producer->vs;
    const auto found = ends_.find(wanted);
    if (found == ends_.end()) return std::nullopt;
    return std::pair{producer->stage, found->second};
  }

 private:
  const pipeline_shape& shape_;
  std::map<report::task_output, nanoseconds> ends_;
};

/// Shifts the clocks of the stages so that no message arrives before it was sent.
void align(std::vector<placed_record>& records, found_run& made) {
  const auto& shape = made.run.shape;
  const outputs all{records, shape};
  // How far the clock of the later stage of a pair may be moved on; `far`: no message bounds it.
  constexpr auto far = 2 * run_ns_max;
  struct bounds {
    nanoseconds least = -far;
    nanoseconds most = far;

    nanoseconds best() const {
      return least == -far ? most : most == far ? least : (least + most) / 2;
    }
  };
  std::map<std::pair<replica_id, stage_id>, bounds> pairs;
  for (const auto& r : records) {
    const auto needs = all.needed_by(r);
    if (!needs || needs->first == r.stage) continue;
    const auto [from, sent] = *needs;
    const auto early = sent - r.begin;
    if (from.value() + 1 == r.stage.value()) {
      auto& b = pairs[{r.replica, r.stage}];
      b.least = std::max(b.least, early);
    } else if (r.stage.value() + 1 == from.value()) {
      auto& b = pairs[{r.replica, from}];
      b.most = std::min(b.most, -early);
    }
  }
  std::map<std::pair<replica_id, stage_id>, nanoseconds> shifts;
  nanoseconds widest = 0, narrowest = std::numeric_limits<nanoseconds>::max(), largest = 0;
  bool fits = true;
  for (std::uint32_t r = 0; r < made.run.replicas; ++r) {
    nanoseconds shift = 0;
    for (std::uint32_t s = 1; s < shape.stages; ++s) {
      const auto found = pairs.find({replica_id{r}, stage_id{s}});
      const auto b = found == pairs.end() ? bounds{0, 0} : found->second;
      fits = fits && b.least <= b.most;
      const auto middle = b.best();
      const bool agrees = b.least <= 0 && b.most >= 0;
      if (!agrees) shift += middle;
      widest = std::max(widest, b.most - b.least);
      narrowest = std::min(narrowest, b.most - b.least);
      largest = std::max(largest, agrees ? 0 : std::abs(middle));
      shifts[{replica_id{r}, stage_id{s}}] = shift;
    }
  }
  if (shape.stages == 1) return;
  if (!fits)
    made.notes.push_back(
        "The clocks of the ranks do not fit together: some messages arrive before they were sent. "
        "Times between ranks are wrong by their difference.");
  else if (largest > 0)
    made.notes.push_back(fmt::format(
        "The clocks of ranks were shifted by up to {:.3f} ms, until no message arrives before it "
        "was sent; messages fix this to within {:.3f} ms.",
        milliseconds(largest), milliseconds(widest / 2)));
  else
    made.notes.push_back(fmt::format(
        "The clocks of the ranks agree with all messages, which would show a difference of more "
        "than {:.3f} ms.",
        milliseconds(std::max<nanoseconds>(narrowest, 0))));
  for (auto& record : records) {
    const auto shift = shifts[{record.replica, record.stage}];
    record.begin += shift;
    record.end += shift;
    if (record.arrived) *record.arrived += shift;
  }
}

/// The tasks of one stage of one replica in order, with what each waited for.
class stage_filler {
 public:
  stage_filler(const outputs& all, report::traced_run& run) : all_(all), run_(run) {}

  void fill(std::vector<placed_record*> tasks) {
    std::int64_t most = 0;
    for (std::size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
      for (end = begin; end < tasks.size() && tasks[end]->step == tasks[begin]->step;) ++end;
      most = std::max(most, count_slots(tasks, begin, end));
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      auto& t = *tasks[i];
      t.seq = launch_seq{i};
      t.decided = t.begin;
      const auto* before = i == 0 ? nullptr : tasks[i - 1];
      const auto needs = all_.needed_by(t);
      note_done(before, t.step);
      if (before == nullptr || before->step != t.step) {
        // The step begins; what was waited for before is not known.
        if (needs) wait_for(t, wait_cause::input, t.begin);
        continue;
      }
      // If the trace does not say when a message came, it came when its task began: as gaps of the
      // framework, such times would delay all tasks of a forecast.
      const bool came_late = needs && needs->first != t.stage &&
                             std::max(needs->second, t.arrived.value_or(t.begin)) > before->end;
      if (!came_late) {
        t.decided = std::min(before->end, t.begin);
        continue;
      }
      wait_for(t, other_ready(tasks, i, most) ? wait_cause::in_order : wait_cause::input,
               before->end);
    }
  }

 private:
  void wait_for(const report::traced_task& t, wait_cause why, nanoseconds begin) {
    run_.waits.push_back({t.replica, t.stage, t.step, {why, t.what}, begin, t.begin});
  }

  /// Microbatches held at the end of each task of the step; returns the most.
  std::int64_t count_slots(const std::vector<placed_record*>& tasks, std::size_t begin,
                           std::size_t end) const {
    std::map<microbatch_id, std::uint32_t> folded;
    std::set<microbatch_id> held;
    std::int64_t most = 0;
    for (auto i = begin; i < end; ++i) {
      auto& t = *tasks[i];
      if (t.what.kind == task_kind::forward) held.insert(t.what.mb);
      most = std::max(most, static_cast<std::int64_t>(held.size()));
      if (has_weight(t.what.kind) && ++folded[t.what.mb] == run_.shape.chunks)
        held.erase(t.what.mb);
      t.slots = static_cast<std::int64_t>(held.size());
    }
    return most;
  }

  /// Whether a later task of the step could have run at the begin of the wait before tasks[next]:
  /// its input was there, and it took no more slots than the stage used.
  bool other_ready(const std::vector<placed_record*>& tasks, std::size_t next,
                   std::int64_t most) const {
    const auto& before = *tasks[next - 1];
    const auto at = before.end;
    const auto end = std::min(tasks.size(), next + looked_ahead);
    for (auto i = next + 1; i < end && tasks[i]->step == before.step; ++i) {
      const auto& t = *tasks[i];
      const std::pair place{t.what.mb, t.what.chunk};
      if (t.what.kind == task_kind::weight) {
        if (backwarded_.contains(place)) return true;
        continue;
      }
      const auto needs = all_.needed_by(t);
      const bool first = run_.shape.is_first(run_.shape.virtual_stage(t.stage, t.what.chunk));
      if (needs ? needs->second > at
                : !(first && t.what.kind == task_kind::forward) && !forwarded_.contains(place))
        continue;
      if (is_backward(t.what.kind)) {
        if (forwarded_.contains(place)) return true;
      } else if (t.what.chunk != chunk_id{0} || before.slots < most) {
        return true;
      }
    }
    return false;
  }

  /// The F and B of this step before the task that is next.
  void note_done(const report::traced_task* before, step_id step) {
    if (before == nullptr || before->step != step) {
      forwarded_.clear();
      backwarded_.clear();
      return;
    }
    const auto& done = before->what;
    if (done.kind == task_kind::forward) forwarded_.emplace(done.mb, done.chunk);
    if (is_backward(done.kind)) backwarded_.emplace(done.mb, done.chunk);
  }

  /// Far more than a pipeline holds; a bound for steps of a million tasks.
  static constexpr std::size_t looked_ahead = 512;

  const outputs& all_;
  report::traced_run& run_;
  std::set<std::pair<microbatch_id, chunk_id>> forwarded_, backwarded_;
};

/// Times count from the begin of the first task.
status count_from_first(std::vector<placed_record>& records) {
  auto zero = records.front().begin;
  auto last = zero;
  for (const auto& r : records) {
    zero = std::min(zero, r.begin);
    last = std::max(last, r.end);
  }
  if (last - zero > run_ns_max)
    return error{
        fmt::format("expected tasks within {:.0f} days on the clocks of all ranks, got {:.0f}",
                    seconds(run_ns_max) / 86'400, seconds(last - zero) / 86'400)};
  for (auto& r : records) {
    r.begin -= zero;
    r.end -= zero;
    if (r.arrived) *r.arrived -= zero;
  }
  return success();
}

}  // namespace

status complete(std::vector<placed_record> records, found_run& made, clocks by) {
  auto& run = made.run;
  made.is_foreign = true;
  run.title = "recorded";
  run.shape.microbatches = 0;
  for (const auto& r : records)
    run.shape.microbatches = std::max(run.shape.microbatches, r.what.mb.value() + 1);
  if (auto valid = run.shape.validate(); !valid) return within(made.file, valid.failure());
  if (auto kept = keep_whole_steps(records, made); !kept) return kept;
  if (auto fits = count_from_first(records); !fits) return within(made.file, fits.failure());
  if (by == clocks::many) align(records, made);
  if (auto fits = count_from_first(records); !fits) return within(made.file, fits.failure());
  const outputs all{records, run.shape};
  std::map<std::pair<replica_id, stage_id>, std::vector<placed_record*>> stages;
  for (auto& r : records) stages[{r.replica, r.stage}].push_back(&r);
  for (auto& [_, tasks] : stages) {
    std::ranges::stable_sort(tasks, {}, &placed_record::begin);
    stage_filler{all, run}.fill(tasks);
    for (const auto* t : tasks) run.tasks.push_back(*t);
  }
  return success();
}

}  // namespace rrfp::foreign
