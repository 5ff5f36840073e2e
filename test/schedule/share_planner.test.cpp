#include <map>

#include <catch2/catch.hpp>

#include <rrfp/core/share_planner.hpp>

namespace rrfp {

namespace {

using shares = std::vector<std::uint32_t>;

/// Replicas of `stages` stages; a stage takes a unit of time, or what `slow` says of it.
struct cluster {
  std::uint32_t replicas;
  std::uint32_t stages;
  std::uint32_t each;
  std::map<std::size_t, double> slow = {};

  microbatch_counts counts() const { return microbatch_counts::equal(replicas, each); }

  void step(share_planner& p) const {
    const auto planned = p.plan(counts());
    std::vector<share_planner::stage_time> times;
    for (std::size_t i = 0; i < std::size_t{replicas} * stages; ++i) {
      const double work = planned.of(replica_id{static_cast<std::uint32_t>(i / stages)});
      times.push_back({work * (slow.contains(i) ? slow.at(i) : 1), work});
    }
    p.observe(counts(), times);
  }
  shares after(share_planner& p, int steps) const {
    for (int i = 0; i < steps; ++i) step(p);
    return p.plan(counts()).shares;
  }
};

share_planner planner_of(const cluster& c, std::vector<std::uint32_t> devices = {}) {
  return share_planner{{c.replicas, c.stages, std::move(devices), true}};
}

}  // namespace

TEST_CASE("Replicas that are alike run their own microbatches") {
  const cluster c{4, 3, 8};
  auto p = planner_of(c);
  CHECK(c.after(p, 20).empty());
}

TEST_CASE("A stage at half speed leaves microbatches to the other replicas, and comes last") {
  cluster c{4, 4, 28, {{5, 2.0}}};
  auto p = planner_of(c);
  CHECK(c.after(p, 2).empty());  // not before it has been slow for some steps
  const auto made = c.after(p, 20);
  REQUIRE(made.size() == 4);
  CHECK(made[1] >= 15);
  CHECK(made[1] <= 17);
  CHECK(made[0] + made[1] + made[2] + made[3] == 112);
  CHECK(p.plan(c.counts()).order.back() == replica_id{1});
  CHECK(p.plan(c.counts()).validate(4).ok());
  // When it is quick again, it gets its share back.
  c.slow.clear();
  CHECK(c.after(p, 40).empty());
}

TEST_CASE("Much work is no slowness") {
  const cluster c{2, 2, 8};
  auto p = planner_of(c);
  for (int i = 0; i < 20; ++i) p.observe(c.counts(), {{24, 24}, {24, 24}, {8, 8}, {8, 8}});
  CHECK(p.plan(c.counts()).are_own());
}

TEST_CASE("Shares do not change for a few percent, nor for a single slow step") {
  cluster c{2, 2, 16, {{0, 1.04}}};
  auto p = planner_of(c);
  CHECK(c.after(p, 30).empty());
  c.slow = {{0, 1.5}};
  c.step(p);
  c.slow.clear();
  CHECK(c.after(p, 10).empty());
}

TEST_CASE("A replica that got nothing is tried again") {
  cluster c{2, 1, 2, {{0, 50.0}}};
  auto p = planner_of(c);
  CHECK((c.after(p, 20) == shares{0, 4}));
  c.slow.clear();
  CHECK(c.after(p, 400).empty());
}

TEST_CASE("Replicas that share a device run what it can do, without measurements") {
  // Stage 1 of replicas 0 and 1 is on one device.
  share_planner p{{3, 2, {0, 1, 2, 1, 4, 5}}};
  const auto made = p.plan(microbatch_counts::equal(3, 8)).shares;
  REQUIRE(made.size() == 3);
  CHECK(made[0] + made[1] == 12);
  CHECK(made[2] == 12);
  // Two replicas whose only common stage is on one device do all the work together.
  share_planner two{{2, 2, {0, 1, 2, 1}}};
  CHECK(two.plan(microbatch_counts::equal(2, 8)).are_own());
}

TEST_CASE("With few microbatches, too, a shared device gets what it can do") {
  // Stage 3 of replicas 0 and 1 is on one device: three devices do what four did.
  std::vector<std::uint32_t> devices(32);
  for (std::uint32_t i = 0; i < devices.size(); ++i) devices[i] = i == 11 ? 3 : i;
  share_planner p{{4, 8, devices}};
  const auto made = p.plan(microbatch_counts::equal(4, 16)).shares;
  REQUIRE(made.size() == 4);
  CHECK(std::max({made[0] + made[1], made[2], made[3]}) == 22);
}

TEST_CASE("Losses on two stages leave the capacity of the stage that has lost most") {
  // Of three replicas, stage 0 of the first and stage 1 of the second run on the third.
  share_planner p{{3, 2, {4, 1, 2, 5, 4, 5}}};
  const auto made = p.plan(microbatch_counts::equal(3, 8)).shares;
  REQUIRE(made.size() == 3);
  CHECK(std::max(made[0] + made[2], made[1] + made[2]) <= 13);
}

TEST_CASE("Other numbers of microbatches are shared alike") {
  cluster c{2, 2, 16, {{0, 3.0}}};
  auto p = planner_of(c);
  c.after(p, 20);
  const auto made = p.plan({{3, 29}});
  CHECK(made.validate(2).ok());
  CHECK(made.of(replica_id{0}) < 10);
  CHECK(p.plan({{1, 0}}).validate(2).ok());
}

}  // namespace rrfp
