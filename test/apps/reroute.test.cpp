/// A job goes on without lost nodes: spares, or nodes of other replicas, compute their ranks, to
/// the same bits, until a replacement comes.
#include <catch2/catch.hpp>

#include "recovering_job.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

settings rerouting(const std::string& replicas, settings more = {}) {
  more.insert(more.begin(), "pipeline.stages=2");
  more.insert(more.end(), {"train.steps=50", "pipeline.replicas=" + replicas,
                           "recovery.without_replacement=reroute"});
  return more;
}

void lose(joined_nodes& job, std::uint32_t node) {
  const auto before = job.recoveries();
  job.signal(node, SIGKILL);
  job.end(node);
  job.wait_for([&] { return job.recoveries() > before; });
}

}  // namespace

TEST_CASE("a job goes on without a lost node, and takes in the process that comes for it") {
  joined_nodes job{4, rerouting("2")};
  job.wait_for_steps(5);
  lose(job, 3);
  auto told = events(job.log(), "recovery").back();
  CHECK(told.at("absent") == json::array({3}));
  CHECK(told.at("from_copies") == true);
  const auto steps = events(job.log(), "step").size();
  job.wait_for_steps(steps + 10);
  CHECK(job.recoveries() == 1);

  job.start(3);
  job.wait_for([&] { return job.recoveries() == 2; });
  told = events(job.log(), "recovery").back();
  CHECK(told.at("lost") == "node 3 joins the job");
  CHECK(told.at("absent") == json::array());
  CHECK(told.at("repeated_steps") == 0);
  job.check_same_bits();
  CHECK_THAT(job.err(3), !Contains("lost"));
}

TEST_CASE("several nodes are lost one after the other, of tensor-parallel stages, too") {
  const auto more = GENERATE(settings{}, settings{"pipeline.tp=2"});
  joined_nodes job{6, rerouting("3", more)};
  job.wait_for_steps(5);
  for (const std::uint32_t node : {2, 5, 4}) {
    lose(job, node);
    job.wait_for_steps(events(job.log(), "step").size() + 5);
  }
  CHECK(events(job.log(), "recovery").back().at("absent") == json::array({2, 4, 5}));
  job.check_same_bits({2, 4, 5});
}

TEST_CASE("a job whose nodes of a stage are all lost waits for one of them") {
  joined_nodes job{4, rerouting("2")};
  job.wait_for_steps(5);
  job.signal(1, SIGKILL);
  job.signal(3, SIGKILL);
  job.end(1);
  job.end(3);
  job.start(1);
  job.wait_for([&] { return job.recoveries() > 0; });
  CHECK(events(job.log(), "recovery").back().at("absent") == json::array({3}));
  job.check_same_bits({3});
}

TEST_CASE("a job goes on without node 0, and takes in the process that comes for it") {
  joined_nodes job{4, rerouting("2")};
  job.wait_for_steps(5);
  lose(job, 0);
  auto told = events(job.log(), "recovery").back();
  CHECK(told.at("absent") == json::array({0}));
  CHECK(told.at("from_copies") == true);
  job.wait_for_steps(events(job.log(), "step").size() + 10);
  CHECK(job.recoveries() == 1);

  job.start(0);
  job.wait_for([&] { return job.recoveries() == 2; });
  told = events(job.log(), "recovery").back();
  CHECK(told.at("lost") == "node 0 joins the job");
  CHECK(told.at("absent") == json::array());
  CHECK(told.at("repeated_steps") == 0);
  job.wait_for_steps(events(job.log(), "step").size() + 5);
  job.check_same_bits();
}

TEST_CASE("who leads in the place of node 0 is lost as well") {
  const auto more = GENERATE(settings{}, settings{"pipeline.tp=2"});
  joined_nodes job{6, rerouting("3", more)};
  job.wait_for_steps(5);
  for (const std::uint32_t node : {0, 1, 4}) {
    lose(job, node);
    job.wait_for_steps(events(job.log(), "step").size() + 5);
  }
  CHECK(events(job.log(), "recovery").back().at("absent") == json::array({0, 1, 4}));
  job.check_same_bits({0, 1, 4});
}

TEST_CASE("of two nodes, the other goes on without a stopped node 0, which ends when it resumes") {
  joined_nodes job{
      2, rerouting("2", {"pipeline.stages=1", "transport.node_timeout_ms=1000", "checkpoint.dir",
                         "checkpoint.every=10", "jitter.compute=paper", "jitter.probability=1",
                         "jitter.floor_ms=20", "jitter.alpha=1"})};
  job.wait_for_steps(5);
  job.signal(0, SIGSTOP);
  job.wait_for([&] { return job.recoveries() == 1; });
  CHECK(events(job.log(), "recovery").back().at("absent") == json::array({0}));
  // The stopped process has the lock of the checkpoints.
  job.wait_for([&] { return job.err(1).find("another run is writing") != std::string::npos; });
  job.signal(0, SIGCONT);
  CHECK(job.end(0).code == 3);
  job.check_same_bits({0});
  CHECK(std::filesystem::exists(job.at("checkpoints/step-00000050")));
}

TEST_CASE("a spare takes the place of a lost node, which gets it back when it returns") {
  const std::uint32_t node = GENERATE(0, 1);
  joined_nodes job{3, {"pipeline.stages=2", "train.steps=50", "recovery.spares=1"}};
  job.wait_for_steps(5);
  lose(job, node);
  auto told = events(job.log(), "recovery").back();
  CHECK(told.at("absent") == json::array({node}));
  CHECK(told.at("from_copies") == true);
  job.wait_for_steps(events(job.log(), "step").size() + 10);
  CHECK(job.recoveries() == 1);

  job.start(node);
  job.wait_for([&] { return job.recoveries() == 2; });
  told = events(job.log(), "recovery").back();
  CHECK(told.at("absent") == json::array());
  CHECK(told.at("repeated_steps") == 0);
  job.check_same_bits();
}

TEST_CASE("the log of a launcher's job goes on without a stopped node 0") {
  training t{3,
             {"pipeline.stages=2", "train.steps=50", "recovery.spares=1",
              "transport.node_timeout_ms=1000"}};
  t.start();
  t.wait_for_step(5);
  t.signal(0, SIGSTOP);
  t.wait_for([&] { return t.recoveries() == 1; });
  t.check_same_bits();
}

TEST_CASE("a job with fewer spares than lost nodes waits for one of them") {
  joined_nodes job{4,
                   {"pipeline.stages=3", "train.steps=50", "recovery.spares=1", "pipeline.tp=2"}};
  job.wait_for_steps(5);
  lose(job, 1);
  job.signal(2, SIGKILL);
  job.end(2);
  job.start(1);
  job.wait_for([&] { return job.recoveries() >= 2; });
  CHECK(events(job.log(), "recovery").back().at("absent") == json::array({2}));
  job.check_same_bits({2});
}

TEST_CASE("a job goes on without a lost spare") {
  joined_nodes job{3, {"pipeline.stages=2", "train.steps=50", "recovery.spares=1"}};
  job.wait_for_steps(5);
  lose(job, 2);
  CHECK(events(job.log(), "recovery").back().at("absent") == json::array({2}));
  job.check_same_bits({2});
}
