/// The gain of readiness on an asynchronous transport: 16 stages, 64 microbatches, F = B = W = 1,
/// log-normal tasks (sigma 0.3), messages of mean 0.3 with independent delays, free to overtake.
///
/// An event simulation of the same hints that shares no code with this one gave, for 10 seeds, BFW
/// with 2p slots 1.451 (exponential messages), 1.490 (log-normal) and 1.410 (constant); BF at
/// 1F1B's memory 0.951, 0.955 and 0.939.
#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

constexpr std::uint64_t seeds = 20;
const pipeline_shape sixteen = linear(16, 64);

/// Gains over in-order 1F1B with a fused backward, under the same jitter.
struct gains {
  double bfw_2p = 0;           ///< BFW, 2p slots on every stage
  double bf_2p = 0;            ///< BF, the same
  double bf_1f1b_memory = 0;   ///< BF, p - s slots on stage s
  double bfw_1f1b_memory = 0;  ///< BFW, the same
};

double total_ms(const plan& p, const simulate::conditions& jitter) {
  double total = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    stage_costs_options options;
    options.jitter = jitter;
    options.jitter.seed = seed;
    const double chunk_ms = 1.0 / p.shape.chunks;
    options.durations = {{chunk_ms, chunk_ms, chunk_ms}};
    total += static_cast<double>(run_well(p, stage_costs(p.shape, options)).makespan) / 1e6;
  }
  return total;
}

gains gains_with(simulate::link_jitter link, double sigma) {
  simulate::conditions jitter;
  jitter.compute = simulate::compute_jitter::lognormal;
  jitter.compute_sigma = 0.3;
  jitter.link = link;
  jitter.link_sigma = sigma;
  jitter.link_mean_ms = 0.3;
  const auto& shape = sixteen;
  const auto baseline = total_ms(plan_of("one_f_one_b", dispatch_mode::in_order, sixteen), jitter);
  auto bfw = plan_of("bfw", dispatch_mode::ready, sixteen);
  auto bf = plan_of("bf", dispatch_mode::ready, sixteen);
  bf.limit.slots = bfw.limit.slots = 2 * shape.stages;
  gains g;
  g.bfw_2p = baseline / total_ms(bfw, jitter);
  g.bf_2p = baseline / total_ms(bf, jitter);
  for (std::uint32_t s = 0; s < shape.stages; ++s) bf.limits.push_back({.slots = shape.stages - s});
  bfw.limits = bf.limits;
  g.bf_1f1b_memory = baseline / total_ms(bf, jitter);
  g.bfw_1f1b_memory = baseline / total_ms(bfw, jitter);
  WARN(name(link) << " " << sigma << ", mean over " << seeds << " seeds: 1F1B in order "
                  << baseline / seeds << " ms; BFW 2p " << g.bfw_2p << ", BF 2p " << g.bf_2p
                  << ", BF p-s " << g.bf_1f1b_memory << ", BFW p-s " << g.bfw_1f1b_memory);
  return g;
}

}  // namespace

TEST_CASE("BFW with 2p slots gains about 1.45 over in-order 1F1B on the same transport") {
  const auto exponential = gains_with(simulate::link_jitter::exponential, 0);
  CHECK(exponential.bfw_2p == Approx(1.45).margin(0.03));
  const auto lognormal = gains_with(simulate::link_jitter::lognormal, 1);
  CHECK(lognormal.bfw_2p == Approx(1.49).margin(0.03));
  const auto narrow = gains_with(simulate::link_jitter::lognormal, 0.3);
  CHECK(narrow.bfw_2p == Approx(1.42).margin(0.03));
  const auto constant = gains_with(simulate::link_jitter::constant, 0);
  CHECK(constant.bfw_2p == Approx(1.41).margin(0.03));

  for (const auto& g : {exponential, lognormal, narrow, constant}) {
    // At 1F1B's memory, BF has nothing to reorder and gains nothing: the gain needs memory.
    CHECK(g.bf_1f1b_memory == Approx(0.95).margin(0.03));
    CHECK(g.bf_2p == Approx(1.25).margin(0.05));
    CHECK(g.bfw_1f1b_memory == Approx(1.16).margin(0.03));
  }
}

TEST_CASE("without jitter, BF with 2p slots is exactly 1F1B, and BFW fills its bubbles") {
  const stage_costs calm{sixteen, {}};
  const auto baseline = run_well(plan_of("one_f_one_b", dispatch_mode::in_order, sixteen), calm);
  CHECK(baseline.makespan == (64 + 15) * 3'000'000);
  CHECK(baseline.lower_bound == baseline.makespan);
  auto bf = plan_of("bf", dispatch_mode::ready, sixteen);
  auto bfw = plan_of("bfw", dispatch_mode::ready, sixteen);
  bf.limit.slots = bfw.limit.slots = 2 * sixteen.stages;
  CHECK(run_well(bf, calm).makespan == baseline.makespan);
  const auto filled = run_well(bfw, calm);
  CHECK(filled.makespan == (64 * 3 + 15) * 1'000'000);
  CHECK(filled.lower_bound == filled.makespan);
}

/// The gains are those of bench/policies.bench.cpp, which covers many more cells.
TEST_CASE("at equal memory BFW+ gains over BFW, and more on a V whose chunks are counted") {
  simulate::conditions jitter;
  jitter.compute = simulate::compute_jitter::lognormal;
  jitter.compute_sigma = 0.3;
  jitter.link = simulate::link_jitter::exponential;
  jitter.link_mean_ms = 0.1;
  auto bfw = plan_of("bfw", dispatch_mode::ready, sixteen);
  auto plus = plan_of("bfw_plus", dispatch_mode::ready, sixteen);
  bfw.limit.slots = plus.limit.slots = 16;
  const auto baseline = total_ms(bfw, jitter);
  CHECK(baseline / total_ms(plus, jitter) > 1.04);
  plus.rule.weight_pieces = 1;
  CHECK(baseline / total_ms(plus, jitter) > 1.01);

  auto early = plan_of("bfw_plus", dispatch_mode::ready, sixteen);
  early.limit.slots = 16;
  early.rule.early_forwards = 32;
  CHECK(total_ms(plus, jitter) / total_ms(early, jitter) > 1.02);

  const pipeline_shape folded{16, 2, 64, placement::v};
  auto v = plan_of("bfw_plus", dispatch_mode::ready, folded);
  v.limit.activations = 32;
  CHECK(baseline / total_ms(v, jitter) > 1.05);
}

}  // namespace rrfp::simulate
