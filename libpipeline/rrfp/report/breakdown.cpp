#include <rrfp/report/breakdown.hpp>

#include <algorithm>
#include <map>
#include <numeric>

#include <rrfp/base/statistics.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::report {

nanoseconds breakdown::busy() const {
  return std::accumulate(busy_by_kind.begin(), busy_by_kind.end(), nanoseconds{0});
}

nanoseconds breakdown::idle() const {
  return std::accumulate(idle_by_cause.begin(), idle_by_cause.end(), nanoseconds{0});
}

breakdown& breakdown::operator+=(const breakdown& other) {
  const auto add = [](auto& to, const auto& from) {
    std::transform(to.begin(), to.end(), from.begin(), to.begin(), std::plus<>{});
  };
  ranks += other.ranks;
  tasks += other.tasks;
  wall += other.wall;
  add(busy_by_kind, other.busy_by_kind);
  delay += other.delay;
  add(idle_by_cause, other.idle_by_cause);
  other_ready += other.other_ready;
  return *this;
}

breakdown breakdown_of(const lane& l, nanoseconds wall) {
  breakdown b{.ranks = 1, .tasks = l.tasks.size(), .wall = wall};
  for (const auto* t : l.tasks) {
    b.busy_by_kind[static_cast<std::size_t>(t->what.kind)] += t->end - t->begin;
    b.delay += t->delay;
  }
  for (const auto& g : l.gaps) {
    b.idle_by_cause[static_cast<std::size_t>(g.why)] += g.end - g.begin;
    if (g.other_ready) b.other_ready += g.end - g.begin;
  }
  return b;
}

std::vector<breakdown> breakdown_by_stage(const timeline& t) {
  std::vector<breakdown> stages;
  for (const auto& l : t.lanes) {
    if (l.rank == rank_id{0}) stages.emplace_back();
    stages.back() += breakdown_of(l, t.wall());
  }
  return stages;
}

run_figures figures_of(const timeline& t) {
  run_figures f;
  nanoseconds busy = 0, available = 0;
  std::map<step_id, std::pair<nanoseconds, nanoseconds>> spans;
  for (const auto& l : t.lanes)
    for (const auto* task : l.tasks) {
      auto& [begin, end] = spans.try_emplace(task->step, task->begin, task->end).first->second;
      begin = std::min(begin, task->begin);
      end = std::max(end, task->end);
      busy += task->end - task->begin;
      f.slots_peak = std::max(f.slots_peak, task->slots);
      f.bytes_peak = std::max(f.bytes_peak, task->bytes);
    }
  std::vector<double> took, steps;
  for (const auto& [_, span] : spans) {
    const auto wall = span.second - span.first;
    available += wall * static_cast<nanoseconds>(t.lanes.size());
    took.push_back(milliseconds(wall));
  }
  for (const auto& s : t.run->steps) {
    if (s.step < t.steps.front().step || t.steps.back().step < s.step) continue;
    steps.push_back(milliseconds(s.took));
    f.bytes_peak = std::max(f.bytes_peak, s.peak_bytes);
  }
  f.step_ms = median(steps.empty() ? took : steps);
  if (available > 0) f.bubble = 1 - static_cast<double>(busy) / static_cast<double>(available);
  return f;
}

std::vector<held> held_over_time(const timeline& t, replica_id r, stage_id s) {
  std::vector<const traced_task*> tasks;
  for (std::uint32_t k = 0; k < t.run->ranks; ++k) {
    const auto& of_rank = t.lanes[t.number_of(r, s, rank_id{k})].tasks;
    tasks.insert(tasks.end(), of_rank.begin(), of_rank.end());
  }
  std::ranges::stable_sort(tasks, {}, &traced_task::end);
  std::vector<std::int64_t> bytes(t.run->ranks);
  std::vector<held> series;
  held now;
  for (const auto* done : tasks) {
    bytes[done->rank.value()] = done->bytes;
    now.bytes = std::ranges::max(bytes);
    now.slots = done->slots;
    now.at = done->end;
    if (!series.empty() && series.back().at == now.at) series.back() = now;
    const bool same =
        !series.empty() && series.back().slots == now.slots && series.back().bytes == now.bytes;
    if (!same) series.push_back(now);
  }
  return series;
}

}  // namespace rrfp::report
