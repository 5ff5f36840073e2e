/// dispatch.policy = "lib:FILE.so" in the programs: simulated, on emulated devices, on several
/// nodes, in an experiment.
#include <catch2/catch.hpp>

#include "http.hpp"
#include "json_lines.hpp"
#include "program.hpp"
#include "small_job.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

const std::string own = "lib:" RRFP_LIBRARIES "/own_policy.so";
const std::string throwing = "lib:" RRFP_LIBRARIES "/order_throws.so";
const std::string thrown = "policy '" + throwing + "': order() threw: no such lane";

std::string emulated_job(const scratch_folder& folder) {
  const auto file = folder / "job.toml";
  std::ofstream{file} << "[pipeline]\nstages = 2\nmicrobatches = 4\n[model]\nlayers = 2\n"
                         "[device]\nkind = \"emulated\"\n[train]\nsteps = 3\n"
                         "[cost]\nforward_ms = 1\nbackward_ms = 1\nweight_ms = 1\n";
  return file;
}

outcome run_with(const std::string& policy, std::vector<std::string> command) {
  command.insert(command.end(), {"--set", "dispatch.policy=" + policy});
  return run_program(command);
}

}  // namespace

TEST_CASE("a policy of one's own trains to the bits of any other, on one node and on several") {
  const small_job job;
  const auto weights_with = [&](const std::string& policy, int nodes, const std::string& mode) {
    const auto o = run_program(job.run(
        nodes, {"dispatch.policy=" + policy, "dispatch.mode=" + mode}, {"--json", job.at("out")}));
    INFO(o.out << o.err);
    REQUIRE(o.code == 0);
    const auto end = lines_of(job.at("out")).back();
    CHECK(end.at("policy") == policy);
    return end.at("weights_xxh64").get<std::string>();
  };
  const auto expected = weights_with("bfw", 1, "ready");
  CHECK(weights_with(own, 1, "ready") == expected);
  CHECK(weights_with(own, 1, "in-order") == expected);
  CHECK(weights_with(own, 2, "ready") == expected);
}

TEST_CASE("nodes that join load the policy of one's own") {
  const scratch_folder folder;
  const auto job = emulated_job(folder);
  const auto at = "127.0.0.1:" + std::to_string(free_ports(1));
  const auto join = [&](const char* rank) {
    return std::make_unique<program>(
        std::vector<std::string>{RRFP_NODE, "join", job, "--nnodes", "2", "--node-rank", rank,
                                 "--rendezvous", at, "--set", "dispatch.policy=" + own});
  };
  const auto first = join("0"), second = join("1");
  for (const auto& node : {first.get(), second.get()}) {
    const auto o = node->wait();
    INFO(o.out << o.err);
    CHECK(o.code == 0);
  }
}

TEST_CASE("a policy of one's own is simulated, planned and emulated") {
  const scratch_folder folder;
  const auto job = emulated_job(folder);
  for (const std::vector<std::string>& command : {std::vector<std::string>{RRFP_SIM, job},
                                                  {RRFP_NODE, "check", job},
                                                  {RRFP_NODE, "run", job}})
    for (const auto* mode : {"dispatch.mode=ready", "dispatch.mode=in-order"}) {
      auto all = command;
      all.insert(all.end(), {"--set", mode});
      const auto o = run_with(own, all);
      INFO(o.out << o.err);
      CHECK(o.code == 0);
    }
  CHECK_THAT(run_with(own, {RRFP_SIM, job}).out, Contains(own + ": makespan "));
}

TEST_CASE("the library of a job file is relative to the file") {
  const scratch_folder folder;
  std::filesystem::copy(RRFP_LIBRARIES "/own_policy.so", folder / "here.so");
  std::ofstream{folder / "job.toml"}
      << "dispatch.policy = \"lib:here.so\"\n[pipeline]\nstages = 2\n"
         "microbatches = 4\n";
  const auto o = run_program({RRFP_SIM, folder / "job.toml"});
  INFO(o.out << o.err);
  CHECK(o.code == 0);
}

TEST_CASE("a missing library is refused in one line, before anything runs") {
  const scratch_folder folder;
  const auto job = emulated_job(folder);
  for (const std::vector<std::string>& command : {std::vector<std::string>{RRFP_SIM, job},
                                                  {RRFP_NODE, "check", job},
                                                  {RRFP_NODE, "run", job}}) {
    const auto o = run_with("lib:/none/own.so", command);
    INFO(o.err);
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    CHECK(count_lines(o.err) == 1);
    CHECK_THAT(o.err, Contains("dispatch.policy") &&
                          Contains("/none/own.so: cannot be loaded as a library: cannot open "));
  }
}

TEST_CASE("a policy that throws while it runs ends every program with its name and function") {
  const scratch_folder folder;
  const auto job = emulated_job(folder);
  for (const std::vector<std::string>& command : {std::vector<std::string>{RRFP_SIM, job},
                                                  {RRFP_NODE, "check", job},
                                                  {RRFP_NODE, "run", job}}) {
    const auto o = run_with(throwing, command);
    INFO(o.err);
    CHECK(o.code == 1);
    CHECK(count_lines(o.err) == 1);
    CHECK_THAT(o.err, Contains(thrown));
  }
}

TEST_CASE("an experiment runs a policy of one's own, and again if the library has changed") {
  const scratch_folder folder;
  const auto library = folder / "tried.so";
  const auto file = folder / "small.toml";
  std::filesystem::copy(RRFP_LIBRARIES "/own_policy.so", library);
  const auto write = [&](const std::string& policy) {
    std::ofstream{file}
        << "name = \"small\"\nseeds = [1]\ntrain.steps = 2\nengine = \"both\"\n"
           "[[workload]]\nname = \"w\"\npipeline.stages = 2\n"
           "pipeline.microbatches = 4\n[[run]]\nname = \"own\"\ndispatch.policy = \""
        << policy << "\"\n[[run]]\nname = \"bfw\"\ndispatch.policy = \"bfw\"\n";
  };
  const auto run = [&] {
    return run_program({RRFP_JITTER, file, "--out", folder / "out", "--time-scale", "0.1"});
  };
  write("lib:tried.so");
  const auto first = run();
  INFO(first.out << first.err);
  CHECK(first.code == 0);
  CHECK_THAT(run().err, Contains("2 of 2 cells were already done"));
  std::ofstream{library, std::ios::app} << "more";
  CHECK_THAT(run().err, Contains("1 of 2 cells were already done"));

  write(throwing);
  const auto failed = run();
  INFO(failed.err);
  CHECK(failed.code != 0);
  CHECK_THAT(failed.err, Contains("run own: ") && Contains(thrown));
}
