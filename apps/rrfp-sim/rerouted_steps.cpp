#include "rerouted_steps.hpp"

#include <algorithm>
#include <numeric>

#include <rrfp/core/share_planner.hpp>
#include <rrfp/job/plan.hpp>
#include <rrfp/policies/registry.hpp>

namespace rrfp::apps {

namespace {

/// The costs of replicas that are simulated as one pipeline. `busy`: by stage, the share of a
/// task's time in which the stage can run no other; for the rest, the result is on its way.
class shared_costs final : public simulate::cost_model {
 public:
  shared_costs(const simulate::cost_model& own, const pipeline_shape& shape,
               std::vector<double> busy)
      : own_(own), shape_(shape), busy_(std::move(busy)) {}

  simulate::nanoseconds compute(step_id step, stage_id stage, const task& t) const override {
    return part_of(own_.compute(step, stage, t), busy_[stage.value()]);
  }
  simulate::nanoseconds compute_of_rank(step_id step, stage_id stage, rank_id rank,
                                        const task& t) const override {
    return part_of(own_.compute_of_rank(step, stage, rank, t), busy_[stage.value()]);
  }
  simulate::nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override {
    return own_.link(step, to, t) + rest_of_producer(step, to, t);
  }
  simulate::nanoseconds link_of_rank(step_id step, virtual_stage_id to, rank_id rank,
                                     const task& t) const override {
    return own_.link_of_rank(step, to, rank, t) + rest_of_producer(step, to, t);
  }

 private:
  static simulate::nanoseconds part_of(simulate::nanoseconds time, double share) {
    return static_cast<simulate::nanoseconds>(static_cast<double>(time) * share);
  }
  simulate::nanoseconds rest_of_producer(step_id step, virtual_stage_id to, const task& t) const {
    const auto from = shape_.producer_of(shape_.at(to).stage, t);
    if (!from) return 0;
    return part_of(own_.compute(step, from->stage, from->what), 1 - busy_[from->stage.value()]);
  }

  const simulate::cost_model& own_;
  const pipeline_shape shape_;
  const std::vector<double> busy_;
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
  const auto parts = parts_of(counts.by_replica, devices);
  const auto own = seconds_of(parts);
  if (own || absent.empty()) return own;
  // The policy is a table for the job's number of microbatches.
  const auto all = seconds_without({});
  if (!all) return all;
  std::uint32_t busiest = 0;
  for (const auto& part : parts) busiest = std::max(busiest, std::ranges::max(part.busiest));
  return *all * busiest / p.microbatches;
}

std::vector<rerouted_steps::part> rerouted_steps::parts_of(
    const std::vector<std::uint32_t>& shares, const std::vector<std::uint32_t>& devices) const {
  const auto stages = job_.pipeline.stages;
  const auto device_of = [&](std::size_t r, std::size_t s) {
    const auto i = r * stages + s;
    return devices.empty() ? i : devices[i];
  };
  std::vector<std::uint32_t> load(shares.size() * stages);
  std::vector<std::size_t> part_at(load.size(), shares.size());  // by device: a replica on it
  std::vector<std::size_t> part_of(shares.size());               // the first replica of the part
  for (std::size_t r = 0; r < shares.size(); ++r) {
    part_of[r] = r;
    for (std::size_t s = 0; s < stages; ++s) {
      load[device_of(r, s)] += shares[r];
      auto& other = part_at[device_of(r, s)];
      if (other < r && part_of[other] != part_of[r])
        std::ranges::replace(part_of, std::size_t{part_of[r]}, std::size_t{part_of[other]});
      other = r;
    }
  }
  std::vector<part> parts;
  for (std::size_t first = 0; first < shares.size(); ++first) {
    part made{{}, 0, std::vector<std::uint32_t>(stages)};
    for (std::size_t r = 0; r < shares.size(); ++r) {
      if (part_of[r] != first) continue;
      made.replicas.push_back(static_cast<std::uint32_t>(r));
      made.microbatches += shares[r];
      for (std::size_t s = 0; s < stages; ++s)
        made.busiest[s] = std::max(made.busiest[s], load[device_of(r, s)]);
    }
    if (made.microbatches > 0) parts.push_back(std::move(made));
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
  auto joint = job_;
  joint.pipeline.microbatches = p.microbatches;
  auto simulation =
      job::simulation_of(joint, policies::registry(), steps_, replica_id{p.replicas.front()});
  if (!simulation) return simulation.failure();
  for (auto& limit : simulation->limits) {
    limit.slots *= static_cast<std::uint32_t>(p.replicas.size());
    limit.run_ahead *= static_cast<std::uint32_t>(p.replicas.size());
    limit.activations *= static_cast<std::uint32_t>(p.replicas.size());
    limit.bytes *= p.replicas.size();
  }
  std::vector<double> busy;
  for (const auto most : p.busiest) busy.push_back(double(most) / p.microbatches);
  const auto ran = simulate::run(
      *simulation, shared_costs{simulation->costs, simulation->shape, std::move(busy)});
  if (!ran) return within(job_.source, ran.failure());
  std::vector<double> seconds;
  for (const auto& step : ran->steps) seconds.push_back(double(step.makespan) * 1e-9);
  return seconds;
}

}  // namespace rrfp::apps
