/// A thousand clusters. `rrfp-vopr --small --seed N --trace` replays one that fails.

#include <catch2/catch.hpp>

#include "cluster.hpp"
#include "slowdown.hpp"

namespace rrfp::cluster {

TEST_CASE("Without faults, a simulated job computes what the reference does") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto c = draw_scenario(seed, size_kind::small);
    c.faults.clear();
    INFO(to_string(c));
    const auto o = run_scenario(c);
    CHECK(o.failure.empty());
    CHECK(o.is_done);
    CHECK(o.steps == c.runs * c.steps);
    CHECK(o.recoveries <= 1);
  }
}

TEST_CASE("Equal seeds give equal runs") {
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    const auto c = draw_scenario(seed, size_kind::small);
    const auto a = run_scenario(c);
    const auto b = run_scenario(c);
    CHECK(a.events == b.events);
    CHECK(a.time == b.time);
    CHECK(a.steps == b.steps);
  }
}

TEST_CASE("A thousand clusters with faults end as without faults, or say why not") {
  std::uint64_t done = 0;
  std::uint64_t recoveries = 0;
  const std::uint64_t seeds = test::slowdown == 1 ? 1000 : 100;  // a sanitizer makes each longer
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto c = draw_scenario(seed, size_kind::small);
    const auto o = run_scenario(c);
    INFO("rrfp-vopr --small --seed " << seed << " --trace: " << o.failure);
    REQUIRE(o.failure.empty());
    done += o.is_done;
    recoveries += o.recoveries;
  }
  CHECK(done > seeds * 8 / 10);
  CHECK(recoveries > seeds);
}

}  // namespace rrfp::cluster
