#include <rrfp/report/timeline.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>

#include <rrfp/base/enum_names.hpp>
#include <rrfp/base/statistics.hpp>

namespace rrfp::report {

namespace {

/// Cuts a gap into pieces from left to right; everything before the cursor is done.
class cutter {
 public:
  cutter(std::vector<gap>& pieces, nanoseconds begin, nanoseconds end)
      : pieces_(pieces), cursor_(begin), end_(end) {}

  nanoseconds cursor() const { return cursor_; }

  /// Assigns the time up to `to`, but at most to the end of the gap, to `piece`.
  void until(nanoseconds to, gap piece) {
    to = std::min(to, end_);
    if (to <= cursor_) return;
    piece.begin = cursor_;
    piece.end = to;
    pieces_.push_back(piece);
    cursor_ = to;
  }
  void rest(idle_cause why) { until(end_, {why}); }

 private:
  std::vector<gap>& pieces_;
  nanoseconds cursor_;
  nanoseconds end_;
};

gap piece_of(const wait& w) {
  if (w.why == wait_cause::memory) return {idle_cause::memory, 0, 0, w.head};
  if (w.why == wait_cause::ranks) return {idle_cause::ranks_behind, 0, 0, w.head};
  return {w.head.kind == task_kind::forward ? idle_cause::activation : idle_cause::gradient, 0, 0,
          w.head, w.why == wait_cause::in_order};
}

/// The waits and the ends of launches of one stage of one replica.
struct stage_records {
  std::vector<const traced_wait*> waits;
  std::unordered_map<std::uint64_t, nanoseconds> launch_end;  ///< on the last rank, by launch_seq
};

class gap_finder {
 public:
  gap_finder(const std::vector<step_span>& steps, const stage_records& stage, lane& l)
      : steps_(steps), stage_(stage), lane_(l) {}

  void find() {
    const traced_task* before = nullptr;
    nanoseconds from = steps_.front().begin;
    for (const auto* t : lane_.tasks) {
      if (before != nullptr && before->step == t->step)
        within_step(*before, *t);
      else
        before_step(before, *t, from);
      before = t;
      from = t->end;
    }
    cutter{lane_.gaps, from, steps_.back().end}.rest(idle_cause::tail);
  }

 private:
  const step_span& span(step_id step) const {
    return *std::ranges::lower_bound(steps_, step, {}, &step_span::step);
  }

  void within_step(const traced_task& before, const traced_task& next) {
    cutter cut{lane_.gaps, before.end, next.begin};
    const auto decided = std::min(next.decided, next.begin);
    const auto launch_end = stage_.launch_end.at(before.seq.value());
    auto w = std::ranges::lower_bound(stage_.waits, before.end, {}, &traced_wait::begin);
    // The previous wait may reach into the gap.
    if (w != stage_.waits.begin()) --w;
    for (; w != stage_.waits.end() && (*w)->begin < decided; ++w) {
      if ((*w)->end <= before.end || (*w)->what.why == wait_cause::complete) continue;
      if (cut.cursor() < (*w)->begin)
        cut.until(std::min({launch_end, (*w)->begin, decided}), {idle_cause::ranks_behind});
      // Nothing was ready, as the next decision found, so the time before the wait counts as well.
      cut.until(std::min((*w)->end, decided), piece_of((*w)->what));
    }
    cut.until(std::min(launch_end, decided), {idle_cause::ranks_behind});
    cut.rest(idle_cause::launch_gap);
  }

  void before_step(const traced_task* before, const traced_task& next, nanoseconds from) {
    cutter cut{lane_.gaps, from, next.begin};
    if (before != nullptr) cut.until(span(before->step).end, {idle_cause::tail});
    cut.until(span(next.step).begin, {idle_cause::between_steps});
    cut.until(next.decided, {idle_cause::head});
    cut.rest(idle_cause::launch_gap);
  }

  const std::vector<step_span>& steps_;
  const stage_records& stage_;
  lane& lane_;
};

/// From the first decision or wait of each step to the end of its last task. With a clock that is
/// behind, a step may seem to begin before the end of the previous one; it then begins at that end.
std::vector<step_span> find_spans(const traced_run& run, step_id first, step_id last) {
  std::map<step_id, step_span> spans;
  for (const auto& t : run.tasks) {
    if (t.step < first || t.step > last) continue;
    auto& s = spans.try_emplace(t.step, step_span{t.step, t.decided, t.end}).first->second;
    s.begin = std::min(s.begin, t.decided);
    s.end = std::max(s.end, t.end);
  }
  for (const auto& w : run.waits)
    if (const auto s = spans.find(w.step); s != spans.end() && w.what.why != wait_cause::complete)
      s->second.begin = std::min(s->second.begin, w.begin);
  std::vector<step_span> ordered;
  for (auto [step, s] : spans) {
    if (!ordered.empty()) s.begin = std::max(s.begin, ordered.back().end);
    s.end = std::max(s.begin, s.end);
    ordered.push_back(s);
  }
  // The window must contain every task completely, whatever the clocks said.
  if (!ordered.empty())
    for (const auto& t : run.tasks)
      if (t.step >= first && t.step <= last)
        ordered.front().begin = std::min(ordered.front().begin, t.begin);
  return ordered;
}

/// The steps with F and both gradients of every microbatch on every rank.
std::set<step_id> whole_steps(const traced_run& run) {
  struct counts {
    std::size_t forward = 0;
    std::size_t backward = 0;
    std::size_t weight = 0;
  };
  std::map<step_id, counts> steps;
  for (const auto& t : run.tasks) {
    auto& c = steps[t.step];
    c.forward += t.what.kind == task_kind::forward;
    c.backward += is_backward(t.what.kind);
    c.weight += has_weight(t.what.kind);
  }
  const auto& shape = run.shape;
  const auto wanted =
      std::size_t{run.replicas} * shape.stages * run.ranks * shape.chunks * shape.microbatches;
  std::set<step_id> whole;
  for (const auto& [step, c] : steps)
    if (std::min({c.forward, c.backward, c.weight}) >= wanted) whole.insert(step);
  return whole;
}

}  // namespace

std::string_view name(idle_cause s) {
  return name_in({"activation", "gradient", "memory", "ranks behind", "launch gap", "head", "tail",
                  "between steps"},
                 s);
}

std::size_t timeline::number_of(replica_id r, stage_id s, rank_id rank) const {
  return (static_cast<std::size_t>(r.value()) * run->shape.stages + s.value()) * run->ranks +
         rank.value();
}

std::string stage_name(const traced_run& run, replica_id r, stage_id s) {
  const auto stage = "stage " + std::to_string(s.value());
  return run.replicas == 1 ? stage : "replica " + std::to_string(r.value()) + " " + stage;
}

std::vector<step_id> steps_of(const traced_run& run) {
  std::set<step_id> steps;
  for (const auto& t : run.tasks) steps.insert(t.step);
  return {steps.begin(), steps.end()};
}

status has_steps(const traced_run& run, step_id first, step_id last) {
  const auto there = steps_of(run);
  const auto from = std::ranges::lower_bound(there, first);
  if (from != there.end() && *from <= last) return success();
  return error{"expected a step from " + std::to_string(there.front().value()) + " to " +
               std::to_string(there.back().value()) + " of run \"" + run.title + "\", got " +
               std::to_string(first.value()) +
               (first == last ? "" : ":" + std::to_string(last.value()))};
}

std::optional<step_id> typical_step(const std::vector<traced_run>& runs, step_id first,
                                    step_id last) {
  struct candidate {
    bool whole = true;
    std::vector<nanoseconds> took;  ///< by run
  };
  std::map<step_id, candidate> all;
  for (const auto& run : runs) {
    const auto whole = whole_steps(run);
    for (const auto& span : find_spans(run, first, last)) {
      auto& c = all[span.step];
      c.whole = c.whole && whole.contains(span.step);
      c.took.push_back(span.end - span.begin);
    }
  }
  std::erase_if(all, [&](const auto& c) { return c.second.took.size() < runs.size(); });
  const auto is_whole = [](const auto& c) { return c.second.whole; };
  if (std::ranges::any_of(all, is_whole)) std::erase_if(all, std::not_fn(is_whole));
  if (all.empty()) return std::nullopt;
  std::map<step_id, double> distance;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    std::vector<nanoseconds> took;
    for (const auto& [step, c] : all) took.push_back(c.took[r]);
    const auto median = static_cast<double>(std::max<nanoseconds>(lower_median(took), 1));
    for (const auto& [step, c] : all)
      distance[step] += std::abs(static_cast<double>(c.took[r]) - median) / median;
  }
  return std::ranges::min_element(distance, {}, [](const auto& d) { return d.second; })->first;
}

result<timeline> make_timeline(const traced_run& run, step_id first, step_id last) {
  if (auto there = has_steps(run, first, last); !there) return there.failure();
  timeline made{&run, find_spans(run, first, last), {}};
  const auto stages = run.shape.stages;
  std::vector<stage_records> records(static_cast<std::size_t>(run.replicas) * stages);
  const auto records_of = [&](const auto& r) -> stage_records& {
    return records[static_cast<std::size_t>(r.replica.value()) * stages + r.stage.value()];
  };
  for (std::uint32_t r = 0; r < run.replicas; ++r)
    for (std::uint32_t s = 0; s < stages; ++s)
      for (std::uint32_t k = 0; k < run.ranks; ++k)
        made.lanes.push_back({replica_id{r}, stage_id{s}, rank_id{k}, {}, {}});
  for (const auto& w : run.waits) records_of(w).waits.push_back(&w);
  for (const auto& t : run.tasks) {
    if (t.step < first || t.step > last) continue;
    made.lanes[made.number_of(t.replica, t.stage, t.rank)].tasks.push_back(&t);
    auto& end = records_of(t).launch_end[t.seq.value()];
    end = std::max(end, t.end);
  }
  for (auto& l : made.lanes) gap_finder{made.steps, records_of(l), l}.find();
  return made;
}

}  // namespace rrfp::report
