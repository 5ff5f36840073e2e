#include <cmath>

#include <catch2/catch.hpp>

#include <rrfp/simulate/loss_costs.hpp>

namespace rrfp::simulate {

namespace {

constexpr double hour = 3600;

/// Two stages, each on one node of each of two replicas. A lost node makes the others slower by a
/// half.
loss_model four_nodes() {
  loss_model m;
  m.nodes = 4;
  m.node_mtbf = 100 * hour;
  m.checkpoint_every = 600;
  m.slowdown = [](std::span<const node_id>) { return 1.5; };
  m.stand_ins = {{node_id{0}, node_id{2}}, {node_id{1}, node_id{3}}};
  m.copies = m.stand_ins;
  return m;
}

double useful(const loss_model& m, recovery_way way) { return costs_of_losses(m, way).useful; }

}  // namespace

TEST_CASE("without losses and the cost of checkpoints all time is useful") {
  auto m = four_nodes();
  m.node_mtbf = 1e9 * hour;
  m.checkpoint = 0;
  for (const auto way : all_recovery_ways) {
    INFO(name(way));
    CHECK(useful(m, way) > 1 - 1e-5);
    CHECK(useful(m, way) <= 1);
    CHECK(costs_of_losses(m, way).repeated_a_day < 1e-3);
  }
  m.checkpoint = 60;
  CHECK(useful(m, recovery_way::restart) == Approx(600. / 660));
}

TEST_CASE("restarts take the time that Daly expects") {
  auto m = four_nodes();
  m.nodes = 64;  // so few are absent that it does not matter that these are not lost again
  m.losses = 40'000;
  for (const double hours : {20., 100., 1000.}) {
    m.node_mtbf = hours * hour;
    const auto costs = costs_of_losses(m, recovery_way::restart);
    // Daly 2006: M exp(R / M) (exp((tau + delta) / M) - 1) for tau of work.
    const auto mtbf = m.job_mtbf();
    const auto work = m.checkpoint_every * m.step;
    const auto expected = mtbf * std::exp((m.notice + m.replace + m.restart) / mtbf) *
                          (std::exp((work + m.checkpoint) / mtbf) - 1);
    INFO(hours);
    CHECK(1 - costs.useful == Approx(1 - work / expected).epsilon(.03));
    CHECK(costs.losses_a_day == Approx(24 * 64 / hours).epsilon(.03));
    CHECK(costs.from_checkpoint == 1);
  }
}

TEST_CASE("the best interval of checkpoints is Young's and Daly's, and no other is better") {
  auto m = four_nodes();
  m.node_mtbf = 40 * hour;
  m.checkpoint = 20;
  m.step = 2;
  CHECK(best_checkpoint_every(m) == std::round(std::sqrt(2 * 20 * 10 * hour) / 2));
  CHECK(costs_of_losses(m, recovery_way::checkpoint).checkpoint_every == best_checkpoint_every(m));
  const auto best = useful(m, recovery_way::checkpoint);
  for (const double factor : {.25, 4.}) {
    m.checkpoint_every = std::round(best_checkpoint_every(m) * factor);
    CHECK(useful(m, recovery_way::restart) < best);
  }
  m.checkpoint = 0;
  CHECK(best_checkpoint_every(m) == 1);
}

TEST_CASE("going on at once is never worse than waiting for a replacement that takes long") {
  auto m = four_nodes();
  for (const double repair : {600., 3600., 36000.})
    for (const double hours : {50., 500., 5000.}) {
      m.node_mtbf = hours * hour;
      m.replace = m.repair = repair;
      INFO(repair << " s, " << hours << " h");
      CHECK(useful(m, recovery_way::reroute) > useful(m, recovery_way::replace));
    }
}

TEST_CASE("a loss holds the job until the others know of it, and again for the replacement") {
  auto m = four_nodes();
  m.node_mtbf = 1e6 * hour;
  CHECK(costs_of_losses(m, recovery_way::reroute).held == Approx(10 + 1 + 1).epsilon(.01));
  CHECK(costs_of_losses(m, recovery_way::replace).held == Approx(10 + 60 + 1).epsilon(.01));
  CHECK(costs_of_losses(m, recovery_way::restart).held == Approx(10 + 60 + 120).epsilon(.01));
}

TEST_CASE("a job without a lost node is as slow as it is said to be, until the repair") {
  auto m = four_nodes();
  m.losses = 100'000;
  m.node_mtbf = 1000 * hour;
  m.notice = m.rejoin = m.checkpoint = 0;
  m.repair = hour;
  m.stand_ins.clear();
  // Each node is absent for an hour in 1001.
  const auto absent = 1 - std::pow(1000. / 1001, 4);
  CHECK(1 - useful(m, recovery_way::reroute) == Approx(absent / 3).epsilon(.02));
}

TEST_CASE("copies are as old as their interval, and half of it is repeated") {
  auto m = four_nodes();
  m.stand_ins = m.copies = {};
  m.copy_every = 21;
  for (const auto way : {recovery_way::reroute, recovery_way::replace}) {
    const auto costs = costs_of_losses(m, way);
    CHECK(costs.repeated_a_day / costs.losses_a_day == Approx(10).epsilon(.05));
    CHECK(costs.from_checkpoint == 0);
  }
}

TEST_CASE("a stage without a node waits for the repair, and goes on from the checkpoint") {
  auto m = four_nodes();
  m.nodes = 2;
  m.stand_ins = m.copies = {{node_id{0}, node_id{1}}};
  m.node_mtbf = 10 * hour;
  m.repair = 10 * hour;
  const auto both = costs_of_losses(m, recovery_way::reroute);
  CHECK(both.from_checkpoint > .3);
  CHECK(both.repeated_a_day > 0);
  CHECK(both.held > hour);
  m.repair = m.replace = 60;
  CHECK(costs_of_losses(m, recovery_way::reroute).from_checkpoint < .02);

  // Each stage on one node: every loss needs the checkpoint.
  m.stand_ins = m.copies = {{node_id{0}}, {node_id{1}}};
  const auto alone = costs_of_losses(m, recovery_way::reroute);
  CHECK(alone.from_checkpoint == 1);
  CHECK(alone.held == Approx(10 + 60 + 1).epsilon(.02));
}

TEST_CASE("losses come from the seed alone") {
  auto m = four_nodes();
  for (const auto way : all_recovery_ways) {
    const auto costs = costs_of_losses(m, way);
    CHECK(costs_of_losses(m, way) == costs);
    auto other = m;
    other.seed = 2;
    CHECK_FALSE(costs_of_losses(other, way) == costs);
    // Another seed changes what losses cost by the error that the header states.
    CHECK(1 - costs_of_losses(other, way).useful == Approx(1 - costs.useful).epsilon(.08));
  }
}

}  // namespace rrfp::simulate
