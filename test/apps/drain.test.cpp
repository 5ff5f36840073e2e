/// Nodes of a training are told to end: one alone leaves after a step and is replaced, to the same
/// bits and without a repeated step; all together end the job.
#include <catch2/catch.hpp>

#include <chrono>
#include <set>
#include <thread>

#include "recovering_job.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using std::chrono::seconds;

constexpr int drained = 4;
constexpr int interrupted = 130;

/// Each step of a run once, and all of them.
void check_steps(const std::vector<json>& log, std::uint64_t steps) {
  std::map<std::uint64_t, int> times;
  for (const auto& s : events(log, "step")) ++times[s.at("step").get<std::uint64_t>()];
  CHECK(times.size() == steps);
  for (const auto& [step, n] : times) {
    INFO("step " << step);
    CHECK(n == 1);
  }
  for (const auto& r : events(log, "recovery")) CHECK(r.at("repeated_steps") == 0);
}

}  // namespace

TEST_CASE("a node that is told to end leaves after a step, and its replacement goes on: any node") {
  joined_nodes job{3, {"train.steps=80", "recovery.every=4"}};
  for (const std::uint32_t node : {1, 0, 2}) {
    const auto before = job.recoveries();
    job.wait_for_steps(5 + 25 * before);
    job.signal(node);
    const auto left = job.end(node);
    CHECK(left.code == drained);
    CHECK_THAT(left.err, Contains("drains") && Contains("another process may take its place"));
    job.start(node);
    job.wait_for([&] { return job.recoveries() > before; });
    const auto told = events(job.log(), "recovery").back();
    CHECK(told.at("from_copies") == true);
    CHECK(told.at("lost") == "node " + std::to_string(node) + " leaves the job");
  }
  job.check_same_bits();
  check_steps(job.log(), 80);
}

TEST_CASE("several nodes of one machine are told to end: they leave one after the other") {
  joined_nodes job{3, {"train.steps=80", "checkpoint.dir"}};
  job.wait_for_steps(5);
  job.signal(1);
  job.signal(2);
  std::set<std::uint32_t> left;
  const auto first = [&] {
    for (const std::uint32_t node : {1, 2})
      if (!left.contains(node) && job.err(node).find("another process") != std::string::npos)
        return node;
    return 0U;
  };
  for (std::size_t n = 1; n <= 2; ++n) {
    job.wait_for([&] { return first() != 0; });
    const auto node = first();
    CHECK(job.end(node).code == drained);
    left.insert(node);
    job.start(node);
    job.wait_for([&] { return job.recoveries() == n; });
  }
  job.check_same_bits();
  check_steps(job.log(), 80);
}

TEST_CASE("the launcher starts a node that was told to end again, also between evaluations") {
  training t{3,
             {"checkpoint.dir", "checkpoint.every=7", "recovery.every=3", "train.steps=100",
              "eval.text=[\"/usr/share/common-licenses/GPL-2\"]", "eval.every=2", "eval.batches=2",
              "jitter.link=exponential", "jitter.link_mean_ms=15"}};
  t.start();
  for (const std::uint32_t node : {0, 2}) {
    const auto before = t.recoveries();
    t.wait_for_step(4 + 20 * before);
    t.signal(node, SIGTERM);
    t.wait_for([&] { return t.recoveries() > before; });
  }
  t.check_same_bits();
  check_steps(t.log(), 100);
  CHECK_THAT(t.launcher().err(), Contains("node 0 has left the job; restarting it"));
}

TEST_CASE("the launcher starts a node again that a second signal has ended at once") {
  training t{
      2,
      {"pipeline.stages=2", "train.steps=60", "jitter.link=exponential", "jitter.link_mean_ms=15"}};
  t.start();
  for (const std::uint32_t node : {0, 1}) {
    const auto before = t.recoveries();
    t.wait_for_step(4 + 20 * before);
    for (int i = 0; i < 2; ++i) {
      t.signal(node, SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
    t.wait_for([&] { return t.recoveries() > before; });
  }
  t.check_same_bits();
  CHECK_THAT(t.launcher().err(), Contains("; restarting it"));
}

TEST_CASE("an interrupt of one node ends the job of a launcher, which starts none again") {
  training t{2, {"pipeline.stages=2", "train.steps=100000"}};
  t.start();
  t.wait_for_step(3);
  t.signal(1, SIGINT);
  const auto o = t.end();
  INFO(o.err);
  CHECK(o.code == interrupted);
  CHECK_THAT(o.err, !Contains("restarting"));
}

TEST_CASE("a launcher starts a node again that was told to end while it waited for another") {
  training t{
      2,
      {"pipeline.stages=2", "train.steps=60", "jitter.link=exponential", "jitter.link_mean_ms=15"}};
  t.start();
  t.wait_for_step(5);
  t.signal(1, SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  t.signal(0, SIGTERM);
  t.check_same_bits();
  CHECK_THAT(t.launcher().err(), Contains("node 0") && Contains("; restarting it"));
}

TEST_CASE("all nodes are told to end: the job saves its step and ends with code 130, in time") {
  const bool saves = GENERATE(true, false);
  joined_nodes job{
      3, saves ? settings{"train.steps=100000", "checkpoint.dir"} : settings{"train.steps=100000"}};
  job.wait_for_steps(3);
  for (const std::uint32_t node : {0, 1, 2}) job.signal(node);
  for (const std::uint32_t node : {0, 1, 2}) {
    const auto o = job.end(node);
    CHECK(o.code == interrupted);
    CHECK(o.seconds < 6 * slowdown);
  }
  const auto log = job.log();
  CHECK(job.recoveries() == 0);
  REQUIRE(events(log, "summary").size() == 1);
  CHECK(events(log, "summary")[0].at("ending") == "interrupted");
  if (saves)
    CHECK(events(log, "checkpoint").back().at("step") == events(log, "step").back().at("step"));
}

TEST_CASE(
    "the nodes are told to end one after the other, as by hand: the last ones need not wait") {
  joined_nodes job{3, {"train.steps=100000", "checkpoint.dir"}};
  job.wait_for_steps(3);
  job.signal(1);
  CHECK(job.end(1).code == drained);
  for (const std::uint32_t node : {2, 0}) {
    job.wait_for([&] { return job.err(node).find("waiting up to") != std::string::npos; });
    job.signal(node);
    const auto o = job.end(node);
    CHECK(o.code == interrupted);
    CHECK(o.seconds < 5 * slowdown);
  }
  // Nothing is lost: the step after which node 1 left is saved.
  const auto log = job.log();
  CHECK(events(log, "checkpoint").back().at("step") == events(log, "step").back().at("step"));
}

TEST_CASE("a second signal ends a node at once, and its replacement goes on") {
  const int again = GENERATE(SIGTERM, SIGINT);
  joined_nodes job{2, {"train.steps=100", "pipeline.stages=2"}};
  job.wait_for_steps(5);
  job.signal(1);
  job.wait_for([&] { return job.err(1).find("drains") != std::string::npos; });
  job.signal(1, again);
  const auto o = job.end(1);
  CHECK(o.code == interrupted);
  CHECK(o.seconds < 2 * slowdown);
  job.start(1);
  for (const std::uint32_t node : {0, 1}) CHECK(job.end(node).code == 0);
  CHECK(results_of(job.log()) == results_of(job.undisturbed()));
}

TEST_CASE("where no replacement is waited for, a signal to one node ends the job with code 130") {
  // Without restarts; and when they are used up.
  const auto restarts = GENERATE(0, 1);
  joined_nodes job{2,
                   {"train.steps=100000", "pipeline.stages=2",
                    "recovery.max_restarts=" + std::to_string(restarts)}};
  job.wait_for_steps(3);
  if (restarts > 0) {
    job.signal(1);
    CHECK(job.end(1).code == drained);
    job.start(1);
    job.wait_for([&] { return job.recoveries() == 1; });
    job.wait_for_steps(events(job.log(), "step").size() + 2);
  }
  job.signal(1);
  for (const std::uint32_t node : {1, 0}) {
    const auto o = job.end(node);
    CHECK(o.code == interrupted);
    CHECK(o.seconds < 6 * slowdown);
  }
}

TEST_CASE("a replacement of another job is refused, and the others go on with the right one") {
  joined_nodes job{2, {"train.steps=100", "pipeline.stages=2"}};
  job.wait_for_steps(3);
  job.signal(1);
  CHECK(job.end(1).code == drained);
  job.start(1, {"train.lr=2e-3"});
  CHECK(job.end(1).code == 2);
  CHECK_THAT(job.err(0), Contains("refused a join") && Contains("job hash"));
  job.start(1);
  job.check_same_bits();
  check_steps(job.log(), 100);
}

TEST_CASE("without a replacement in time, the others end with code 3 and say who has left") {
  joined_nodes job{2, {"train.steps=100000", "pipeline.stages=2", "recovery.hold_s=2"}};
  job.wait_for_steps(3);
  job.signal(1);
  CHECK(job.end(1).code == drained);
  const auto o = job.end(0);
  CHECK(o.code == 3);
  CHECK_THAT(o.err, Contains("node 1 leaves the job") && Contains("did not join within"));
}
