/// What pipeline.shares = "measured" gives when one stage of one replica is slow, and what it costs
/// when none is (speed 1): simulated, and on the runtime with emulated devices.
///
///   scripts/build release shares_bench
///   build/release/bin/shares_bench
///
/// The limit is the capacity that is left: with R replicas of which one has speed v, the
/// undisturbed time * R / (R - 1 + v). The last column is the share of it that is reached.
#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <rrfp/actors/session.hpp>
#include <rrfp/base/statistics.hpp>
#include <rrfp/core/share_planner.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/simulate/stage_costs.hpp>

namespace {

using namespace rrfp;

constexpr std::uint32_t stages = 4;
constexpr std::uint32_t steps = 24;
constexpr std::uint32_t steps_before = 12;  ///< in which the shares settle
constexpr double task_ms = 3;

struct share_case {
  std::uint32_t replicas;
  std::uint32_t microbatches;
  double speed;  ///< of the slow stage; 1: there is none
  bool measures;
};

double time_of(const share_case& c, replica_id replica, stage_id stage) {
  const bool is_slow = replica == replica_id{0} && stage == stage_id{1};
  return is_slow ? task_ms / c.speed : task_ms;
}

pipeline_shape shape_of(std::uint32_t microbatches) {
  return {stages, 1, microbatches, placement::linear};
}

policy_factory bfw_plus() {
  return [](const pipeline_shape& shape, stage_id stage) {
    return (*policies::registry().make("bfw_plus", shape))->make(stage);
  };
}

const memory_limit limit{.slots = 2 * stages};

/// Milliseconds of a step.
double simulated(const share_case& c) {
  share_planner planner{{c.replicas, stages, {}, c.measures}};
  const auto counts = microbatch_counts::equal(c.replicas, c.microbatches);
  double last = 0;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const auto shares = planner.plan(counts);
    std::vector<share_planner::stage_time> times;
    last = 0;
    for (std::uint32_t r = 0; r < c.replicas; ++r) {
      const replica_id replica{r};
      const auto shape = shape_of(shares.of(replica));
      simulate::stage_costs_options options;
      options.durations.clear();
      for (std::uint32_t s = 0; s < stages; ++s) {
        const auto ms = time_of(c, replica, stage_id{s});
        options.durations.push_back({ms, ms, ms});
        times.push_back({ms * shape.microbatches, double(shape.microbatches)});
      }
      const simulate::stage_costs costs{shape, options};
      simulate::plan plan;
      plan.shape = shape;
      plan.rule.make_policy = bfw_plus();
      plan.limit = limit;
      const auto ran = simulate::run(plan, costs);
      last = std::max(last, static_cast<double>(ran->steps.front().makespan) * 1e-6);
    }
    planner.observe(counts, times);
  }
  return last;
}

/// Milliseconds of a step, median.
double emulated(const share_case& c) {
  actors::session_setup setup;
  setup.shape = shape_of(c.microbatches);
  setup.replicas = c.replicas;
  setup.rule.make_policy = bfw_plus();
  setup.limits.assign(stages, limit);
  setup.train.steps = steps;
  setup.measures_shares = c.measures;
  setup.emulated = actors::emulated_device{
      [c](step_id, const rank_address& at, const task&) {
        return time_of(c, at.replica, at.stage);
      },
      [](step_id, replica_id, virtual_stage_id, const task&) { return std::int64_t{4096}; }, 1};
  std::vector<double> times;
  setup.on_step = [&](const actors::step_summary& s) {
    if (s.step > steps_before) times.push_back(s.step_ms);
  };
  auto opened = actors::session::open(std::move(setup));
  if (!opened || (*opened)->run().how != actors::ending::done) {
    std::fputs("shares_bench: the run failed\n", stderr);
    std::exit(1);
  }
  return median(times);
}

}  // namespace

int main() {
  fmt::print("{:>8} {:>12} {:>5}  {:9} {:>8} {:>8} {:>8} {:>8} {:>7}\n", "replicas", "microbatches",
             "speed", "engine", "even ms", "equal", "measured", "limit", "reached");
  struct engine {
    std::string_view name;
    double (*run)(const share_case&);
  };
  for (const auto& [replicas, microbatches, speed] :
       {std::tuple{4U, 32U, .5}, std::tuple{4U, 16U, .5}, std::tuple{4U, 8U, .5},
        std::tuple{2U, 32U, .5}, std::tuple{8U, 32U, .5}, std::tuple{4U, 32U, .8},
        std::tuple{4U, 32U, 1.}})
    for (const auto& [name, run] : {engine{"simulator", simulated}, engine{"runtime", emulated}}) {
      const auto even = run({replicas, microbatches, 1, false});
      const auto equal = run({replicas, microbatches, speed, false});
      const auto measured = run({replicas, microbatches, speed, true});
      const auto limit_ms = even * replicas / (replicas - 1 + speed);
      fmt::print("{:>8} {:>12} {:>5}  {:9} {:8.1f} {:8.1f} {:8.1f} {:8.1f} {:7.2f}\n", replicas,
                 microbatches, speed, name, even, equal, measured, limit_ms, limit_ms / measured);
    }
}
