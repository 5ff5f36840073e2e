#include <rrfp/core/stragglers.hpp>

#include <algorithm>
#include <functional>

#include <rrfp/base/check.hpp>
#include <rrfp/base/statistics.hpp>

namespace rrfp {

void straggler_watch::add(std::vector<std::int64_t> own, std::int64_t time) {
  RRFP_CHECK(own.size() == all() && all() > 0, "each rank has an own time");
  late_.resize(all());
  // The lower one, because with two ranks one may be late.
  const auto usual = lower_median(own);
  for (std::size_t i = 0; i < own.size(); ++i)
    late_[i] += std::max<std::int64_t>(own[i] - usual, 0);
  steps_.push_back({std::move(own), time});
  if (steps_.size() > window) steps_.pop_front();
  judge();
}

void straggler_watch::judge() {
  found_.clear();
  if (steps_.size() < window) return;
  std::int64_t time = 0;
  std::vector<std::int64_t> own(all());
  std::vector<std::size_t> late_steps(all());
  for (const auto& s : steps_) {
    time += s.time;
    const auto usual = lower_median(s.own);
    for (std::size_t i = 0; i < own.size(); ++i) {
      own[i] += s.own[i];
      const auto late = static_cast<double>(s.own[i] - usual);
      late_steps[i] += late >= late_min / 2 * static_cast<double>(s.time);
    }
  }
  const auto usual = lower_median(own);
  std::int64_t waiting = 0;
  for (const auto o : own) waiting += std::max<std::int64_t>(time - o, 0);
  for (std::size_t group = 0; group < own.size(); group += ranks_) {
    straggler found{replica_id{static_cast<std::uint32_t>(group / ranks_ / stages_)},
                    stage_id{static_cast<std::uint32_t>(group / ranks_ % stages_)},
                    {}};
    std::int64_t latest = 0;
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      const auto late = own[group + r] - usual;
      if (late_steps[group + r] < late_steps_min) continue;
      if (static_cast<double>(late) < late_min * static_cast<double>(time)) continue;
      found.ranks.emplace_back(r);
      latest = std::max(latest, late);
    }
    if (found.ranks.empty()) continue;
    const auto others = static_cast<double>(own.size() - found.ranks.size());
    found.late = static_cast<double>(latest) / static_cast<double>(time);
    found.waiting = std::min(
        others * static_cast<double>(latest) / std::max(static_cast<double>(waiting), 1.0), 1.0);
    found_.push_back(std::move(found));
  }
  std::ranges::stable_sort(found_, std::greater{}, &straggler::late);
}

}  // namespace rrfp
