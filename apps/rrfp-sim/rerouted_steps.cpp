#include "rerouted_steps.hpp"

#include <algorithm>
#include <numeric>

#include <rrfp/core/share_planner.hpp>
#include <rrfp/job/plan.hpp>
#include <rrfp/policies/registry.hpp>

namespace rrfp::apps {

namespace {

class stretched_costs final : public simulate::cost_model {
 public:
  stretched_costs(const simulate::cost_model& own, const std::vector<double>& by_stage)
      : own_(own), by_stage_(by_stage) {}

  simulate::nanoseconds compute(step_id step, stage_id stage, const task& t) const override {
    return stretched(stage, own_.compute(step, stage, t));
  }
  simulate::nanoseconds compute_of_rank(step_id step, stage_id stage, rank_id rank,
                                        const task& t) const override {
    return stretched(stage, own_.compute_of_rank(step, stage, rank, t));
  }
  simulate::nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override {
    return own_.link(step, to, t);
  }
  simulate::nanoseconds link_of_rank(step_id step, virtual_stage_id to, rank_id rank,
                                     const task& t) const override {
    return own_.link_of_rank(step, to, rank, t);
  }

 private:
  simulate::nanoseconds stretched(stage_id stage, simulate::nanoseconds own) const {
    return static_cast<simulate::nanoseconds>(static_cast<double>(own) * by_stage_[stage.value()]);
  }

  const simulate::cost_model& own_;
  const std::vector<double>& by_stage_;
};

}  // namespace

result<double> rerouted_steps::seconds_without(std::span<const node_id> absent) {
  const auto representative = representative_of(absent);
  if (const auto known = sets_.find(representative); known != sets_.end()) return known->second;
  auto& of_size = by_size_[absent.size()];
  if (sets_.size() >= sets_max && of_size.sets > 0) return of_size.seconds / of_size.sets;
  const auto seconds = simulated_without(representative);
  if (!seconds) return seconds;
  of_size = {of_size.seconds + *seconds, of_size.sets + 1};
  return sets_[representative] = *seconds;
}

std::vector<node_id> rerouted_steps::representative_of(std::span<const node_id> absent) const {
  const auto replicas = job_.pipeline.replicas;
  if (!job_.pipeline.nodes.empty() || places_.nodes() % replicas != 0)
    return {absent.begin(), absent.end()};
  const auto of_replica = places_.nodes() / replicas;
  std::vector<std::vector<std::uint32_t>> lost(replicas);
  for (const auto n : absent) lost[n.value() / of_replica].push_back(n.value() % of_replica);
  std::ranges::sort(lost);
  std::vector<node_id> made;
  for (std::uint32_t r = 0; r < replicas; ++r)
    for (const auto n : lost[r]) made.emplace_back(r * of_replica + n);
  return made;
}

result<double> rerouted_steps::simulated_without(std::span<const node_id> absent) {
  const auto& p = job_.pipeline;
  const auto counts = microbatch_counts::equal(p.replicas, p.microbatches);
  const auto devices =
      absent.empty() ? std::vector<std::uint32_t>{} : places_.without(absent).devices();
  const auto planned = share_planner{{p.replicas, p.stages, devices}}.plan(counts);
  if (!planned.are_own())
    if (auto made = seconds_of(parts_of(planned.shares, devices))) return made;
  return seconds_of(parts_of(counts.by_replica, devices));
}

std::vector<rerouted_steps::part> rerouted_steps::parts_of(
    const std::vector<std::uint32_t>& shares, const std::vector<std::uint32_t>& devices) const {
  const auto stages = job_.pipeline.stages;
  std::vector<std::uint32_t> load(shares.size() * stages);
  const auto device_of = [&](std::size_t place) {
    return devices.empty() ? place : devices[place];
  };
  for (std::size_t i = 0; i < load.size(); ++i) load[device_of(i)] += shares[i / stages];
  std::vector<part> parts;
  for (std::uint32_t r = 0; r < shares.size(); ++r) {
    if (shares[r] == 0) continue;
    parts.push_back({r, shares[r], {}});
    for (std::uint32_t s = 0; s < stages; ++s)
      parts.back().stretched.push_back(double(load[device_of(std::size_t{r} * stages + s)]) /
                                       shares[r]);
  }
  return parts;
}

result<double> rerouted_steps::seconds_of(const std::vector<part>& parts) {
  std::vector<double> steps(steps_);
  for (const auto& p : parts) {
    auto known = parts_.find(p);
    if (known == parts_.end()) {
      auto made = simulated(p);
      if (!made) return made.failure();
      known = parts_.emplace(p, std::move(*made)).first;
    }
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = std::max(steps[i], known->second[i]);
  }
  return std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps_);
}

result<std::vector<double>> rerouted_steps::simulated(const part& p) const {
  auto with_share = job_;
  with_share.pipeline.microbatches = p.share;
  const auto dispatch = plan::make_dispatch_plan(with_share, policies::registry());
  if (!dispatch) return within(job_.source, dispatch.failure());
  const auto costs = plan::expected_costs(with_share, replica_id{p.replica});
  if (!costs) return costs.failure();
  const auto ran = simulate::run(plan::simulation_of(*dispatch, *costs, steps_),
                                 stretched_costs{*costs, p.stretched});
  if (!ran) return within(job_.source, ran.failure());
  std::vector<double> seconds;
  for (const auto& step : ran->steps) seconds.push_back(double(step.makespan) * 1e-9);
  return seconds;
}

}  // namespace rrfp::apps
