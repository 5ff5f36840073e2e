/// Checks the published formulas of the schedules by measurement: the time that a stage is idle
/// between its first and its last task, and what it holds until W (or BW) ends, executed in order
/// with links that take no time.
///
/// p stages, m microbatches, v chunks, stage s. TF, TB, TW are the times of one chunk and T is
/// their sum; a whole stage takes v times as long. A ramp costs stage s the time of the p-1-s
/// stages behind it, so the literature's (p-1)x is the gap of stage 0, and stage s has (p-1-s)x;
/// the rest of (p-1)x lies before its first and after its last task.
#include <algorithm>
#include <functional>

#include <catch2/catch.hpp>

#include "virtual_run.hpp"

using namespace rrfp;
using namespace rrfp::policies::testing;

namespace {

/// Equal and unequal times; every order of the three, ties included.
const std::vector<durations> all_durations = [] {
  std::vector<durations> all;
  for (std::int64_t f = 1; f <= 4; ++f)
    for (std::int64_t b = 1; b <= 4; ++b)
      for (std::int64_t w = 1; w <= 4; ++w) all.push_back({f, b, w});
  return all;
}();

constexpr std::uint32_t stages_max = 6;
constexpr std::uint32_t counts_max = 14;

struct sizes {
  std::int64_t p;
  std::int64_t v;
  std::int64_t m;
};

/// The expected value for a stage, as a function of (sizes, stage, durations).
using formula = std::function<std::int64_t(const sizes&, std::int64_t, const durations&)>;

std::int64_t positive(std::int64_t x) { return std::max<std::int64_t>(x, 0); }

/// Compares every stage of every run with `gap` and `peak` (in chunks of microbatches).
void check_stages(std::string_view name, const pipeline_shape& shape,
                  const std::vector<durations>& times, const formula& gap, const formula& peak) {
  const sizes n{shape.stages, shape.chunks, shape.microbatches};
  for (const auto& t : times) {
    const auto report = run(name, shape, t, dispatch_mode::in_order);
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      INFO(name << ", p " << n.p << ", v " << n.v << ", m " << n.m << ", stage " << s << ", "
                << text_of(t));
      CHECK(report.stages[s].busy == n.m * n.v * t.sum());
      CHECK(report.stages[s].idle == gap(n, s, t));
      CHECK(report.stages[s].memory.activations_peak == peak(n, s, t));
    }
  }
}

/// Checks every shape `shape_of(p, m)` for m from `least(p)` on.
void check_sweep(std::string_view name,
                 const std::function<pipeline_shape(std::uint32_t, std::uint32_t)>& shape_of,
                 const std::function<std::uint32_t(std::uint32_t)>& least,
                 const std::vector<durations>& times, const formula& gap, const formula& peak) {
  for (std::uint32_t p = 1; p <= stages_max; ++p)
    for (auto m = least(p); m <= counts_max; ++m)
      check_stages(name, shape_of(p, m), times, gap, peak);
}

std::uint32_t any_microbatches(std::uint32_t) { return 1; }

/// Gap, head and tail together are equal on every stage: (p-1)T for each chunk-sized ramp.
void check_ramp(std::string_view name, const pipeline_shape& shape, const durations& t) {
  const auto report = run(name, shape, t, dispatch_mode::in_order);
  for (const auto& stage : report.stages)
    CHECK(stage.idle + stage.head + stage.tail == (shape.stages - 1) * t.sum());
  // The same as a rate.
  const double p = shape.stages;
  const double mv = shape.microbatches * shape.chunks;
  CHECK(report.bubble_fraction == Approx((p - 1) / (mv + p - 1)));
}

}  // namespace

TEST_CASE("gpipe is idle for (p-1)T and holds all m microbatches") {
  check_sweep(
      "gpipe", linear, any_microbatches, all_durations,
      [](const sizes& n, auto s, const durations& t) { return (n.p - 1 - s) * t.sum(); },
      [](const sizes& n, auto, const durations&) { return n.m; });
}

TEST_CASE("1F1B is idle for (p-1)T and holds min(p-s, m) microbatches") {
  check_sweep(
      "one_f_one_b", linear, any_microbatches, all_durations,
      [](const sizes& n, auto s, const durations& t) { return (n.p - 1 - s) * t.sum(); },
      [](const sizes& n, auto s, const durations&) { return std::min(n.p - s, n.m); });
}

TEST_CASE("gpipe's, 1F1B's and interleaved 1F1B's ramps cost each stage the same") {
  for (const durations t : {durations{1, 1, 1}, durations{2, 3, 1}, durations{5, 1, 2}}) {
    for (std::uint32_t p = 1; p <= stages_max; ++p) {
      for (std::uint32_t m = 1; m <= counts_max; ++m) {
        check_ramp("gpipe", linear(p, m), t);
        check_ramp("one_f_one_b", linear(p, m), t);
        for (std::uint32_t v = 1; v <= 3; ++v)
          if (m >= p) check_ramp("interleaved_1f1b", interleaved(p, v, m), t);
      }
    }
  }
}

TEST_CASE("interleaved 1F1B is idle for (p-1)T of one chunk, a v-th of 1F1B's idle time") {
  // For m < p, even a group of all microbatches returns p - m tasks too early, v-1 times. A group
  // has G microbatches: p if p divides m, otherwise as few more as a whole number of groups
  // requires.
  const auto group = [](const sizes& n) {
    const auto groups = std::max<std::int64_t>(n.m / n.p, 1);
    return (n.m + groups - 1) / groups;
  };
  for (std::uint32_t v = 1; v <= 4; ++v) {
    check_sweep(
        "interleaved_1f1b", [v](auto p, auto m) { return interleaved(p, v, m); }, any_microbatches,
        {{1, 1, 1}, {2, 3, 1}, {1, 2, 3}, {5, 1, 1}},
        [](const sizes& n, auto s, const durations& t) {
          return (n.p - 1 - s) * t.sum() + positive(n.p - n.m) * (n.v - 1) * t.sum();
        },
        [&](const sizes& n, auto s, const durations&) {
          return std::min((n.v - 1) * group(n) + 2 * (n.p - 1 - s) + 1, n.m * n.v);
        });
  }
}

TEST_CASE("interleaved 1F1B's first stage holds (v-1)p + 2(p-1) + 1 chunks if p divides m") {
  for (std::uint32_t p = 1; p <= 5; ++p) {
    for (std::uint32_t v = 1; v <= 4; ++v) {
      for (std::uint32_t rounds = 1; rounds <= 4; ++rounds) {
        // One round has p*v chunks in all.
        const auto expected = std::min((v - 1) * p + 2 * (p - 1) + 1, rounds * p * v);
        const auto report = run("interleaved_1f1b", interleaved(p, v, rounds * p), {1, 1, 1},
                                dispatch_mode::in_order);
        CHECK(report.stages[0].memory.activations_peak == expected);
      }
    }
  }
}

TEST_CASE("ZB-H1 is idle for (p-1)(TF+TB-TW) if TW <= TF and m >= p") {
  std::vector<durations> times;
  for (const auto& t : all_durations)
    if (t.weight <= t.forward) times.push_back(t);
  check_sweep(
      "zb_h1", linear, [](auto p) { return p; }, times,
      [](const sizes& n, auto s, const durations& t) {
        return (n.p - 1 - s) * (t.forward + t.backward - t.weight);
      },
      [](const sizes& n, auto, const durations&) { return n.p; });
}

TEST_CASE("ZB-H1's W fills the gap of an F, min(m, p) - 1 - s times") {
  // In the ramp-down, W takes the place of an F, so TF bounds the gain; TB plays no part. There is
  // one such place for each microbatch in flight except the last s + 1.
  check_sweep(
      "zb_h1", linear, any_microbatches, all_durations,
      [](const sizes& n, auto s, const durations& t) {
        return (n.p - 1 - s) * (t.forward + t.backward) -
               positive(std::min(n.m, n.p) - 1 - s) * std::min(t.forward, t.weight);
      },
      [](const sizes& n, auto, const durations&) { return std::min(n.m, n.p); });
}

TEST_CASE("ZB-H2 is idle for (p-1)(TF+TB-2TW) and holds 2p-1 microbatches") {
  // Exact for TW <= TF; beyond that a W counts as an F, for the same reason as in ZB-H1. Once W
  // more than fills the ramp, no idle time is left.
  check_sweep(
      "zb_h2", linear, [](auto p) { return 2 * p - 1; }, all_durations,
      [](const sizes& n, auto s, const durations& t) {
        const auto filled = 2 * std::min(t.forward, t.weight);
        return (n.p - 1 - s) * positive(t.forward + t.backward - filled);
      },
      [](const sizes& n, auto, const durations&) { return 2 * n.p - 1; });
}

TEST_CASE("ZB-V is never idle at equal costs and holds 2p chunks") {
  check_sweep(
      "zb_v", folded, [](auto p) { return 2 * p - 1; }, {{1, 1, 1}, {3, 3, 3}},
      [](const sizes&, auto, const durations&) { return 0; },
      [](const sizes& n, auto, const durations&) { return 2 * n.p; });
}

TEST_CASE("ZB-V holds at most 2p chunks at any costs and for any m") {
  for (std::uint32_t p = 1; p <= stages_max; ++p) {
    for (std::uint32_t m = 1; m <= counts_max; ++m) {
      const auto report = run("zb_v", folded(p, m), {2, 3, 1}, dispatch_mode::in_order);
      for (std::uint32_t s = 0; s < p; ++s)
        CHECK(report.stages[s].memory.activations_peak == std::min({2 * p, 2 * m, m + 1 + s}));
    }
  }
}

TEST_CASE("DualPipeV is idle for (p-1)(TF+TB-TW) and holds 2p+1 chunks") {
  // DualPipe's (P/2-1)(F&B + B - 3W), with P = 2p and its B our BW, is (p-1)(TF+2TB-TW) if F&B is F
  // and then BW: a pair that starts when both inputs have arrived and delivers both outputs at its
  // end. Written as two tasks, F waits for no gradient and its output leaves TB + TW earlier, which
  // saves (p-1)TB. This holds while the parts of a pair match: TW <= TB <= TF <= TB+TW.
  std::vector<durations> times;
  for (const auto& t : all_durations)
    if (t.weight <= t.backward && t.backward <= t.forward && t.forward <= t.backward + t.weight)
      times.push_back(t);
  REQUIRE(times.size() > 10);
  check_sweep(
      "dualpipe_v", folded, [](auto p) { return 2 * p; }, times,
      [](const sizes& n, auto s, const durations& t) {
        return (n.p - 1 - s) * (t.forward + t.backward - t.weight);
      },
      [](const sizes& n, auto, const durations&) { return 2 * n.p + 1; });
}

TEST_CASE("DualPipeV is never idle for longer than DualPipe's formula allows") {
  // If F is much longer than BW, they no longer form a pair; the formula assumes TF <= TB+TW.
  for (std::uint32_t p = 1; p <= stages_max; ++p) {
    for (const auto& t : all_durations) {
      if (t.weight > std::min(t.forward, t.backward) || t.forward > t.backward + t.weight) continue;
      const auto report = run("dualpipe_v", folded(p, 2 * p + 3), t, dispatch_mode::in_order);
      INFO("p " << p << ", " << text_of(t));
      CHECK(report.stages[0].idle <= (p - 1) * (t.forward + 2 * t.backward - t.weight));
    }
  }
}
