#include <rrfp/report/late.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace rrfp::report {

namespace {

/// What a rank did in a step.
struct own_time {
  nanoseconds sum = 0;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

std::map<step_id, own_time> own_times_of(const lane& l) {
  std::map<step_id, own_time> steps;
  for (const auto* t : l.tasks) {
    auto& own = steps.try_emplace(t->step, own_time{0, t->begin, t->decided}).first->second;
    own.sum += t->end - std::max(own.end, t->decided);
    own.end = t->end;
  }
  return steps;
}

}  // namespace

std::vector<late_stage> find_late(const timeline& t) {
  std::map<step_id, std::vector<own_time>> steps;
  for (const auto& l : t.lanes)
    for (const auto& [step, own] : own_times_of(l)) steps[step].push_back(own);
  straggler_watch watch{t.run->replicas, t.run->shape.stages, t.run->ranks};
  std::map<std::pair<replica_id, stage_id>, late_stage> found;
  for (const auto& [step, ranks] : steps) {
    if (ranks.size() != t.lanes.size()) continue;
    std::vector<std::int64_t> own;
    auto begin = ranks.front().begin, end = ranks.front().end;
    for (const auto& r : ranks) {
      own.push_back(r.sum);
      begin = std::min(begin, r.begin);
      end = std::max(end, r.end);
    }
    watch.add(std::move(own), end - begin);
    for (const auto& s : watch.found()) {
      const auto at = found.try_emplace({s.replica, s.stage}, late_stage{s, step, step}).first;
      auto& known = at->second;
      known.last = step;
      if (s.late > known.what.late) known.what = s;
    }
  }
  std::vector<late_stage> all;
  for (auto& [_, f] : found) all.push_back(std::move(f));
  return all;
}

}  // namespace rrfp::report
