/// Helpers for the tests of the simulator: costs as functions, plans from hints and sequences.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/core/sequence.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/simulate/stage_costs.hpp>

#include "../support/tasks.hpp"
#include "test_policies.hpp"

namespace rrfp::simulate::testing {

using rrfp::testing::hint_table;
using rrfp::testing::make_task;
using rrfp::testing::table_policy;

/// The first line of a file of durations or delays.
inline const std::string durations_header = "step,stage,chunk,mb,kind,ms\n";

/// Durations from functions; by default F = 1, B = 1, W = 1, BW = 2 and no link time.
class function_costs final : public cost_model {
 public:
  std::function<nanoseconds(stage_id, const task&)> task_time = [](stage_id, const task& t) {
    return t.kind == task_kind::backward_weight ? 2 : 1;
  };
  std::function<nanoseconds(virtual_stage_id, const task&)> link_time =
      [](virtual_stage_id, const task&) { return 0; };

  nanoseconds compute(step_id, stage_id stage, const task& what) const override {
    return task_time(stage, what);
  }
  nanoseconds link(step_id, virtual_stage_id to, const task& what) const override {
    return link_time(to, what);
  }
};

inline pipeline_shape linear(std::uint32_t stages, std::uint32_t microbatches) {
  return {stages, 1, microbatches, placement::linear};
}

/// All stages use the same hint.
inline plan ready_plan(const hint_table& hint) {
  plan p;
  p.shape = hint.shape;
  const auto shared = std::make_shared<const hint_table>(hint);
  p.rule = {
      [shared](const pipeline_shape&, stage_id) { return std::make_unique<table_policy>(shared); }};
  return p;
}

/// All stages use the policy of this name.
inline plan plan_of(std::string_view name, dispatch_mode mode, const pipeline_shape& shape) {
  const auto set = policies::registry().make(name, shape);
  REQUIRE(set.ok());
  plan p;
  p.shape = shape;
  p.rule = {[set = *set](const pipeline_shape&, stage_id s) { return set->make(s); }, mode};
  return p;
}

/// Every stage executes its sequence in order.
inline plan in_order_plan(const pipeline_shape& shape, std::vector<sequence> sequences) {
  plan p;
  p.shape = shape;
  p.rule = {[sequences = std::move(sequences)](const pipeline_shape&, stage_id s) {
              return make_sequence_policy("given", sequences[s.value()]);
            },
            dispatch_mode::in_order};
  return p;
}

inline plan one_f_one_b_plan(const pipeline_shape& shape) {
  std::vector<sequence> sequences;
  for (std::uint32_t s = 0; s < shape.stages; ++s)
    sequences.push_back(rrfp::testing::one_f_one_b(shape, stage_id{s}));
  return in_order_plan(shape, std::move(sequences));
}

/// "F0 F1 BW0" as a sequence.
inline sequence sequence_of(std::string_view text) {
  sequence order;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const auto parsed = task_of(text.substr(0, end));
    REQUIRE(parsed);
    order.push_back(*parsed);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return order;
}

inline std::string text_of(const sequence& order) {
  std::string text;
  for (const auto& t : order) text += (text.empty() ? "" : " ") + to_string(t);
  return text;
}

inline report run_well(const plan& p, const cost_model& costs, observer* watcher = nullptr) {
  auto ran = run(p, costs, watcher);
  INFO((ran ? "" : ran.message()));
  REQUIRE(ran.ok());
  return *ran;
}

/// Log-normal tasks and messages of mean `link_ms`: messages overtake each other.
inline stage_costs jittered_costs(const pipeline_shape& shape, std::uint64_t seed,
                                  double link_ms = 0.5) {
  stage_costs_options options;
  options.jitter.seed = seed;
  options.jitter.compute = simulate::compute_jitter::lognormal;
  options.jitter.compute_sigma = 0.5;
  options.jitter.link = simulate::link_jitter::exponential;
  options.jitter.link_mean_ms = link_ms;
  return stage_costs(shape, options);
}

}  // namespace rrfp::simulate::testing
