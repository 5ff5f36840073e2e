/// A session setup without a model, for a test to complete.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <rrfp/actors/session.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/simulate/stage_costs.hpp>

namespace rrfp::actors::test {

struct choice_of_run {
  pipeline_shape shape;
  dispatch_mode mode = dispatch_mode::ready;
  std::string policy = "bfw";
  /// 0: none; otherwise delays of tasks and messages up to a millisecond.
  std::uint64_t weather = 0;
  std::uint32_t slots = 0;
  std::uint32_t lookahead = 0;
  std::uint32_t spin_us = 0;
  /// Changes the setup that this gives; may be null.
  void (*change)(session_setup&) = nullptr;
};

inline double scattered_ms(std::uint64_t weather, std::uint64_t a, std::uint64_t b,
                           std::uint64_t c) {
  auto x = weather * 0x9e3779b97f4a7c15 + a * 0xbf58476d1ce4e5b9 + b * 0x94d049bb133111eb + c;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 32;
  return static_cast<double>(x % 1000) / 1000.0;
}

/// The policy of the run, for a step of this shape.
inline std::shared_ptr<const policy_set> policies_of(const choice_of_run& c,
                                                     const pipeline_shape& shape) {
  auto set = policies::registry().make(c.policy, shape);
  RRFP_CHECK(set.ok(), "a policy for the shape");
  const auto policies = *set;
  if (c.mode != dispatch_mode::in_order || policies->sequences() != nullptr) return policies;
  simulate::plan rounds;
  rounds.shape = shape;
  rounds.rule = {
      [policies](const pipeline_shape&, stage_id stage) { return policies->make(stage); }};
  auto order = simulate::nominal_sequences(rounds, simulate::stage_costs{shape, {}});
  RRFP_CHECK(order.ok(), "rounds become a sequence");
  return std::make_shared<const policy_set>(c.policy, std::move(*order));
}

/// Without what the ranks compute.
inline session_setup run_setup(const choice_of_run& c, const job::train_options& train) {
  session_setup s;
  s.shape = c.shape;
  s.lookahead = c.lookahead;
  s.spin = std::chrono::microseconds{c.spin_us};
  s.limits.assign(c.shape.stages, memory_limit{c.slots});
  s.rule = {[c](const pipeline_shape& shape, stage_id stage) {
              return policies_of(c, shape)->make(stage);
            },
            c.mode};
  s.train = train;
  if (c.weather != 0) {
    s.delays.compute = [w = c.weather](step_id step, const rank_address& at, const task& t) {
      return scattered_ms(w, step.value(), at.stage.value(),
                          t.mb.value() * 8 + static_cast<std::uint64_t>(t.kind) * 2);
    };
    s.delays.link = [w = c.weather](step_id step, virtual_stage_id to, const rank_address&,
                                    const task& t) {
      return scattered_ms(w + 1, step.value(), to.value(), t.mb.value() * 2 + t.chunk.value());
    };
  }
  if (c.change != nullptr) c.change(s);
  return s;
}

}  // namespace rrfp::actors::test
