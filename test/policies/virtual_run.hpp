/// Runs a schedule in virtual time: the same three durations on every chunk, links without delay.
#pragma once

#include <string>

#include <rrfp/simulate/simulator.hpp>

#include "support.hpp"

namespace rrfp::policies::testing {

/// Times of F, B and W on one chunk; BW takes B + W.
struct durations {
  std::int64_t forward = 1;
  std::int64_t backward = 1;
  std::int64_t weight = 1;

  std::int64_t sum() const { return forward + backward + weight; }
};

class uniform_costs final : public simulate::cost_model {
 public:
  explicit uniform_costs(durations t) : t_(t) {}

  simulate::nanoseconds compute(step_id, stage_id, const task& what) const override {
    switch (what.kind) {
      case task_kind::forward: return t_.forward;
      case task_kind::backward: return t_.backward;
      case task_kind::weight: return t_.weight;
      case task_kind::backward_weight: return t_.backward + t_.weight;
    }
    return 0;
  }
  simulate::nanoseconds link(step_id, virtual_stage_id, const task&) const override { return 0; }

 private:
  durations t_;
};

inline std::string text_of(const durations& t) {
  return "TF " + std::to_string(t.forward) + ", TB " + std::to_string(t.backward) + ", TW " +
         std::to_string(t.weight);
}

inline simulate::report run(std::string_view name, const pipeline_shape& shape, durations t,
                            dispatch_mode mode, memory_limit limit = {}) {
  const auto set = policies_of(name, shape);
  simulate::plan plan;
  plan.shape = shape;
  plan.limit = limit;
  plan.rule = {[set](const pipeline_shape&, stage_id stage) { return set->make(stage); }, mode};
  auto report = simulate::run(plan, uniform_costs{t});
  INFO(name << ": " << (report ? "" : report.message()));
  REQUIRE(report.ok());
  return *std::move(report);
}

}  // namespace rrfp::policies::testing
