#include <rrfp/core/share_planner.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/base/statistics.hpp>

namespace rrfp {

namespace {

/// Of so many microbatches, several are given out at once.
constexpr std::uint32_t turns_max = 4096;
/// By how much the time of a stage without work approaches that of the other replicas in a step, so
/// that it is tried again.
constexpr double forgetting = 0.02;

}  // namespace

share_planner::share_planner(share_planner_options options)
    : options_(std::move(options)),
      devices_(options_.devices),
      measured_(std::size_t{options_.replicas} * options_.stages),
      planned_(measured_.size(), 1) {
  if (devices_.empty()) {
    devices_.resize(measured_.size());
    std::iota(devices_.begin(), devices_.end(), 0U);
  }
  RRFP_CHECK(devices_.size() == measured_.size(), "each stage has a device");
  std::map<std::uint32_t, std::uint32_t> stages_on;
  for (const auto device : devices_) ++stages_on[device];
  for (const auto device : devices_) is_shared_.push_back(stages_on[device] > 1);
}

microbatch_shares share_planner::plan(const microbatch_counts& counts) const {
  microbatch_shares made{counts};
  if (is_even()) return made;
  auto shares = divide(counts.total(), planned_);
  if (shares == counts.by_replica || std::ranges::max(shares) > microbatches_max) return made;
  made.shares = std::move(shares);
  for (std::uint32_t r = 0; r < options_.replicas; ++r) made.order.emplace_back(r);
  // A slow replica goes on with a sum of a quick one, which runs its own part first.
  std::ranges::stable_sort(made.order, {},
                           [&](replica_id r) { return slowest_stage(r.value(), planned_); });
  return made;
}

void share_planner::observe(const microbatch_counts& counts, const std::vector<stage_time>& times) {
  if (!options_.measures) return;
  measure(times);
  if (std::ranges::count(measured_, 0) != 0) return;
  const auto total = counts.total();
  const auto planned = plan(counts);
  const auto& now = planned.are_own() ? counts.by_replica : planned.shares;
  const auto best = step_time(divide(total, measured_), measured_);
  const bool are_own_good =
      !planned.are_own() && step_time(counts.by_replica, measured_) < (1 + gain_min / 2) * best;
  if (!are_own_good && step_time(now, measured_) < (1 + gain_min) * best) {
    better_ = 0;
  } else if (++better_ == patience) {
    planned_ = are_own_good ? std::vector<double>(planned_.size(), 1) : measured_;
    better_ = 0;
  }
}

void share_planner::measure(const std::vector<stage_time>& times) {
  RRFP_CHECK(times.size() == measured_.size(), "each stage has a time");
  for (std::uint32_t s = 0; s < options_.stages; ++s) {
    std::vector<double> usual;
    for (std::uint32_t r = 0; r < options_.replicas; ++r) {
      const auto i = index(r, s);
      if (times[i].work <= 0) continue;
      const auto now = times[i].time / times[i].work;
      measured_[i] = measured_[i] == 0 ? now : measured_[i] + smoothing * (now - measured_[i]);
      if (!is_shared_[i]) usual.push_back(measured_[i]);
    }
    for (std::uint32_t r = 0; r < options_.replicas && !usual.empty(); ++r) {
      auto& own = measured_[index(r, s)];
      if (is_shared_[index(r, s)] || own == 0)
        own = lower_median(usual);
      else if (times[index(r, s)].work <= 0)
        own += forgetting * (lower_median(usual) - own);
    }
  }
}

std::vector<std::uint32_t> share_planner::divide(std::uint32_t total,
                                                 const std::vector<double>& times) const {
  std::vector<std::uint32_t> shares(options_.replicas);
  std::vector<double> load(devices_.size());
  const auto turn = std::max(total / turns_max, 1U);
  for (auto left = total; left > 0;) {
    const auto given = std::min(left, turn);
    const auto key_of = [&](std::uint32_t r) {
      const auto first = is_shared_.begin() + static_cast<std::ptrdiff_t>(index(r, 0));
      const auto shared = std::count(first, first + options_.stages, true);
      return std::tuple{end_of(r, shares[r] + given, load, times), shared, shares[r], r};
    };
    auto key = key_of(0);
    for (std::uint32_t r = 1; r < options_.replicas; ++r) key = std::min(key, key_of(r));
    const auto best = std::get<3>(key);
    shares[best] += given;
    for (std::uint32_t s = 0; s < options_.stages; ++s)
      load[devices_[index(best, s)]] += given * times[index(best, s)];
    left -= given;
  }
  return shares;
}

double share_planner::step_time(const std::vector<std::uint32_t>& shares,
                                const std::vector<double>& times) const {
  std::vector<double> load(devices_.size());
  for (std::uint32_t r = 0; r < options_.replicas; ++r)
    for (std::uint32_t s = 0; s < options_.stages; ++s)
      load[devices_[index(r, s)]] += shares[r] * times[index(r, s)];
  double end = 0;
  for (std::uint32_t r = 0; r < options_.replicas; ++r) {
    if (shares[r] == 0) continue;
    end = std::max(end, own_time(r, shares[r], times));
    for (std::uint32_t s = 0; s < options_.stages; ++s)
      end = std::max(end, load[devices_[index(r, s)]] + first_time(r, times) - times[index(r, s)]);
  }
  return end;
}

double share_planner::end_of(std::uint32_t replica, std::uint32_t share,
                             const std::vector<double>& load,
                             const std::vector<double>& times) const {
  auto end = own_time(replica, share, times);
  for (std::uint32_t s = 0; s < options_.stages; ++s)
    end = std::max(end, load[devices_[index(replica, s)]] + first_time(replica, times));
  return end;
}

double share_planner::own_time(std::uint32_t replica, std::uint32_t share,
                               const std::vector<double>& times) const {
  return first_time(replica, times) + (share - 1) * slowest_stage(replica, times);
}

double share_planner::first_time(std::uint32_t replica, const std::vector<double>& times) const {
  const auto first = times.begin() + static_cast<std::ptrdiff_t>(index(replica, 0));
  return std::accumulate(first, first + options_.stages, 0.0);
}

double share_planner::slowest_stage(std::uint32_t replica, const std::vector<double>& times) const {
  double slowest = 0;
  for (std::uint32_t s = 0; s < options_.stages; ++s)
    slowest = std::max(slowest, times[index(replica, s)]);
  return slowest;
}

bool share_planner::is_even() const {
  if (options_.replicas == 1) return true;
  for (std::size_t i = 0; i < planned_.size(); ++i)
    if (is_shared_[i] || planned_[i] != planned_[i % options_.stages]) return false;
  return true;
}

}  // namespace rrfp
