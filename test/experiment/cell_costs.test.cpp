/// Pairing: task times, delays and images depend only on workload, weather and seed, not on the
/// run.
#include <catch2/catch.hpp>

#include <numeric>

#include <rrfp/experiment/cell_costs.hpp>

#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

namespace {

cell_model model_of(const cell& c) {
  const auto made = cell_model::make(c);
  REQUIRE(made.ok());
  return *made;
}

/// The duration of every task and message by loaded microbatch, in a run of this cell.
std::vector<simulate::nanoseconds> durations_of(const cell& c, step_id step = step_id{0},
                                                replica_id replica = replica_id{0}) {
  const auto model = model_of(c);
  const step_costs costs{model, step, replica};
  const auto shape = model.shape();
  std::vector<std::uint32_t> admitted(shape.microbatches);
  for (std::uint32_t at = 0; at < shape.microbatches; ++at) admitted[costs.order()[at]] = at;
  std::vector<simulate::nanoseconds> all;
  for (std::uint32_t loaded = 0; loaded < shape.microbatches; ++loaded)
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      const auto of = [&](task_kind kind) {
        return task{kind, microbatch_id{admitted[loaded]}, chunk_id{0}};
      };
      for (const auto kind :
           {task_kind::forward, task_kind::backward, task_kind::weight, task_kind::backward_weight})
        all.push_back(costs.compute(step, stage_id{s}, of(kind)));
      if (s > 0) all.push_back(costs.link(step, virtual_stage_id{s}, of(task_kind::forward)));
      if (s + 1 < shape.stages)
        all.push_back(costs.link(step, virtual_stage_id{s}, of(task_kind::backward)));
    }
  return all;
}

}  // namespace

TEST_CASE("every mode, policy, limit and admission gets the same tasks, messages and images") {
  for (const auto* preset : {"measured", "measured-lognormal", "J3"}) {
    auto c = jittered_cell();
    c.weather.conditions = *weather::conditions_of(preset);
    c.weather.conditions.pause_ms = 100;
    c.weather.conditions.slow_link_factor = 3;
    const auto base = durations_of(c);
    for (const auto mode : {run_mode::blocking, run_mode::in_order, run_mode::ready})
      for (const auto admit : {admission::loaded, admission::small_large_small,
                               admission::large_first, admission::small_first}) {
        auto other = c;
        other.run = {"other", mode, "bfw", hint_quality::stale, 0, 3,
                     1000,    5,    admit, paper_column::bf};
        CHECK(durations_of(other) == base);
      }
  }
}

TEST_CASE("another seed, step or replica gets other disturbances") {
  const auto c = jittered_cell();
  const auto base = durations_of(c);
  auto other = c;
  other.seed = 8;
  CHECK(durations_of(other) != base);
  CHECK(durations_of(c, step_id{1}) != base);
  CHECK(durations_of(c, step_id{0}, replica_id{1}) != base);
}

TEST_CASE("splitting backward changes no work under any weather") {
  for (const auto* preset : {"none", "measured", "J3"}) {
    auto c = jittered_cell();
    c.weather.conditions = *weather::conditions_of(preset);
    const auto model = model_of(c);
    const step_costs costs{model, step_id{0}, replica_id{0}};
    const auto at = [&](task_kind kind, std::uint32_t mb) {
      return costs.compute(step_id{0}, stage_id{1}, {kind, microbatch_id{mb}, chunk_id{0}});
    };
    for (std::uint32_t mb = 0; mb < 8; ++mb)
      CHECK(std::abs(at(task_kind::backward_weight, mb) - at(task_kind::backward, mb) -
                     at(task_kind::weight, mb)) <= 1);
  }
}

TEST_CASE("admission sorts by undisturbed times") {
  auto c = jittered_cell();
  c.run.admit = admission::small_first;
  c.workload.options.microbatches = 32;
  const auto model = model_of(c);
  const auto images = model.images(step_id{0}, replica_id{0});
  const auto order = step_costs{model, step_id{0}, replica_id{0}}.order();
  for (std::size_t i = 1; i < order.size(); ++i) CHECK(images[order[i - 1]] <= images[order[i]]);
  CHECK(images[order.front()] < images[order.back()]);
}

TEST_CASE("the paper's e follows the durations of the stage") {
  // Equal tasks of 20 ms: e is 20, above the floor of 5, and each delay alpha * 20 * (0.5 + U).
  auto c = plain_cell();
  c.workload.cost.forward_ms = c.workload.cost.backward_ms = c.workload.cost.weight_ms = {20};
  c.weather.conditions = *weather::conditions_of("J1");
  c.weather.conditions.jitter.probability = 1;
  const auto model = model_of(c);
  const step_costs costs{model, step_id{0}, replica_id{0}};
  for (std::uint32_t mb = 0; mb < 8; ++mb) {
    const auto ms = double(costs.compute(step_id{0}, stage_id{2},
                                         {task_kind::forward, microbatch_id{mb}, chunk_id{0}})) /
                    1e6;
    CHECK(ms >= 20 + 0.5 * 20 * 0.5);
    CHECK(ms <= 20 + 0.5 * 20 * 1.5);
  }
}

TEST_CASE("[cost] gives times by stage, and no bytes") {
  auto c = plain_cell();
  c.workload.cost.forward_ms = {1, 2, 3, 4};
  c.workload.cost.link_ms = 0.5;
  const auto model = model_of(c);
  CHECK(model.own_ms(stage_id{2}, task_kind::forward, 0) == 3);
  CHECK(model.own_ms(stage_id{2}, task_kind::weight, 0) == 1);
  CHECK(model.message_ms(stage_id{1}, 0) == 0.5);
  CHECK(model.activation_bytes(stage_id{0}, 0) == 0);
  CHECK(model.gradient_exchange_ms() == 0);
}

}  // namespace rrfp::experiment
