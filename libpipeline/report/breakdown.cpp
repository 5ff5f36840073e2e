#include <rrfp/report/breakdown.hpp>

#include <algorithm>
#include <numeric>

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
  breakdown b;
  b.ranks = 1;
  b.tasks = l.tasks.size();
  b.wall = wall;
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

std::vector<held> held_over_time(const timeline& t, replica_id r, stage_id s) {
  std::vector<const traced_task*> tasks;
  for (std::uint32_t k = 0; k < t.run->ranks; ++k) {
    const auto& of_rank = t.lanes[t.number_of(r, s, rank_id{k})].tasks;
    tasks.insert(tasks.end(), of_rank.begin(), of_rank.end());
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const auto* a, const auto* b) { return a->end < b->end; });
  std::vector<std::int64_t> bytes(t.run->ranks);
  std::vector<held> series;
  held now;
  for (const auto* done : tasks) {
    now.bytes += done->bytes - std::exchange(bytes[done->rank.value()], done->bytes);
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
