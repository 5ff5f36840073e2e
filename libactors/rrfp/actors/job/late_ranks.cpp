#include "late_ranks.hpp"

#include <algorithm>

namespace rrfp::actors {

std::vector<straggler> late_ranks::add(const std::map<stage_key, stage_step_ended>& outcomes) {
  std::vector<std::int64_t> own;
  auto begin = outcomes.begin()->second.first_begin;
  std::int64_t end = 0;
  for (const auto& [_, o] : outcomes) {
    own.insert(own.end(), o.own.begin(), o.own.end());
    begin = std::min(begin, o.first_begin);
    end = std::max(end, o.last_end);
  }
  watch_.add(std::move(own), end - begin);
  ++steps_;
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    auto& c = counters_[i];
    c.late_ns.set(watch_.late()[i]);
    c.lateness.set(0);
  }
  std::vector<straggler> news;
  for (const auto& s : watch_.found()) {
    for (auto& c : counters_)
      if (c.at.replica == s.replica && c.at.stage == s.stage &&
          std::ranges::count(s.ranks, c.at.rank) > 0)
        c.lateness.set(s.late);
    const auto [seen, is_new] = seen_at_.try_emplace({s.replica, s.stage}, steps_);
    if (is_new || steps_ - seen->second > steps_before_again) news.push_back(s);
    seen->second = steps_;
  }
  return news;
}

}  // namespace rrfp::actors
