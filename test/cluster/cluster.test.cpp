/// A thousand clusters. `rrfp-vopr --small --seed N --trace` replays one that fails.

#include <catch2/catch.hpp>

#include "cluster.hpp"
#include "scale.hpp"
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
    CHECK(o.recoveries == 0);
  }
}

TEST_CASE("A run that does not end fails, and its trace says what each process waits for") {
  auto c = draw_scenario(0, size_kind::small);
  c.faults.clear();
  c.events_max = 40;
  std::FILE* const trace = std::tmpfile();
  REQUIRE(trace != nullptr);
  CHECK(run_scenario(c, trace).failure == "the job does not end: 40 events");
  std::rewind(trace);
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), trace));
  std::fclose(trace);
  INFO(text);
  for (std::uint32_t n = 0; n < c.nodes; ++n)
    CHECK(text.find("node " + std::to_string(n) + " (process " + std::to_string(n) +
                    "): waits for ") != std::string::npos);
  CHECK(text.find("waits for its join: node 0 is waiting for node 2") != std::string::npos);
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
  CHECK(recoveries > seeds / 20);
}

TEST_CASE("What nodes send grows with n log n, also through node 0, and node 0 keeps up") {
  std::vector<scale_result> results;
  for (const std::uint32_t nodes : {16, 64, 256}) results.push_back(run_at_scale(nodes));
  CHECK(faults_of_scale(results) == std::vector<std::string>{});
  for (const auto& r : results)
    for (std::size_t p = 0; p < purposes; ++p) {
      INFO(r.nodes << " nodes, " << name(static_cast<purpose>(p)));
      CHECK(r.counted.by_purpose[p].all.messages > 0);
    }
}

TEST_CASE("What grows with the square of the nodes is named, and so is a node 0 without rest") {
  scale_result few, many;
  few.nodes = 16;
  many.nodes = 64;
  few.time = many.time = 10 * s;
  const auto at = static_cast<std::size_t>(purpose::agreements);
  few.counted.by_purpose[at].all = {16 * 16, 1000};
  many.counted.by_purpose[at].all = {64 * 64, 1000};
  const auto faults = faults_of_scale({few, many});
  REQUIRE(faults.size() == 1);
  CHECK(faults[0] == "agreements, 64 nodes: messages grew from 256 to 4096, faster than n log n");
  const auto beat = static_cast<std::size_t>(purpose::heartbeats);
  few.counted.by_purpose[beat].sent_by_0 = {600'000, 600'000};
  CHECK(faults_of_scale({few})[0] ==
        "heartbeats, 16 nodes: node 0 is busy with them for 60 % of the time");
}

}  // namespace rrfp::cluster
