/// rrfp-node as a program on the host-side fake of CUDA and NCCL.
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <catch2/catch.hpp>

#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

const std::string job = RRFP_SOURCE "/apps/jobs/quickstart.toml";

using settings = std::vector<std::string>;
using environment = std::map<std::string, std::string>;

std::vector<std::string> command(const environment& with, const settings& set,
                                 const std::vector<std::string>& options = {}) {
  std::vector<std::string> all{"/usr/bin/env", "LD_PRELOAD=" RRFP_HOST_CUDA};
  for (const auto& [name, value] : with) all.push_back(name + "=" + value);
  all.insert(all.end(), {RRFP_NODE, "run", job});
  for (const std::string s : {"run.progress=none", "device.kind=cuda", "train.steps=3",
                              "jitter.compute=none", "model.hidden=64"})
    all.insert(all.end(), {"--set", s});
  for (const auto& s : set) all.insert(all.end(), {"--set", s});
  all.insert(all.end(), options.begin(), options.end());
  return all;
}

/// The hashes of losses and weights of every run of the job.
std::set<std::string> results_of(const environment& with, const settings& set,
                                 const std::vector<std::string>& options = {}) {
  const scratch_folder folder;
  auto all = command(with, set, options);
  all.insert(all.end(), {"--set", "pipeline.microbatches=6", "--json", folder / "out.jsonl"});
  const auto o = run_program(all);
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  std::set<std::string> found;
  for (const auto& line : lines_of(folder / "out.jsonl"))
    if (line.at("event") == "summary")
      found.insert(line.at("losses_xxh64").get<std::string>() + " " +
                   line.at("weights_xxh64").get<std::string>());
  return found;
}

}  // namespace

TEST_CASE("streams of one device, of four and of two processes give the same bits") {
  const auto one = results_of({}, {});
  REQUIRE(one.size() == 1);
  CHECK(results_of({}, {"dispatch.lookahead=2"}) == one);
  CHECK(results_of({{"RRFP_HOST_CUDA_DEVICES", "4"}}, {"dispatch.lookahead=1"}) == one);
  CHECK(results_of({}, {}, {"--local-nodes", "2"}) == one);
}

TEST_CASE("ranks that sum with NCCL get the same bits as ranks that sum on the host") {
  const environment eight{{"RRFP_HOST_CUDA_DEVICES", "16"}};
  for (const std::string ranks : {"pipeline.tp=4", "pipeline.replicas=2"}) {
    const auto by_nccl = results_of(eight, {ranks, "device.collectives=nccl"});
    REQUIRE(by_nccl.size() == 1);
    CHECK(results_of(eight, {ranks, "device.collectives=host"}) == by_nccl);
  }
}

TEST_CASE("a process creates no context on another process's device") {
  const scratch_folder folder;
  const auto o = run_program(
      command({{"RRFP_HOST_CUDA_DEVICES", "2"}, {"RRFP_HOST_CUDA_REPORT", folder / "contexts"}}, {},
              {"--local-nodes", "2"}));
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("; device memory is staged"));
  const auto contexts = text_of(folder / "contexts");
  INFO(contexts);
  int process[2] = {}, device[2] = {};
  std::istringstream in{contexts};
  in >> process[0] >> device[0] >> process[1] >> device[1] >> std::ws;
  CHECK((in.eof() && process[0] != process[1] && device[0] + device[1] == 1));
}

TEST_CASE("a device that is out of memory ends the run on all nodes and says which key to lower") {
  for (const std::string nodes : {"1", "2"}) {
    const auto o = run_program(command({{"RRFP_HOST_CUDA_BYTES", "14000000"}},
                                       {"data.microbatch_size=16"}, {"--local-nodes", nodes}));
    INFO(o.out << o.err);
    CHECK(o.code == 1);
    CHECK_THAT(o.err, Contains("stage ") && Contains(" of step ") &&
                          Contains("cuda:0 is out of memory with ") && Contains(" slots held") &&
                          Contains("lower dispatch.slots"));
    CHECK(o.seconds < 60);
  }
}

TEST_CASE("a run resumed from its checkpoint reaches the weights of an uninterrupted run") {
  const scratch_folder folder;
  const settings runs{"checkpoint.every=2", "checkpoint.dir=" + (folder / "kept")};
  const auto whole = results_of({}, {"train.steps=4"});
  settings first = runs;
  first.push_back("train.steps=2");
  results_of({}, first);
  settings second = runs;
  second.insert(second.end(), {"train.steps=4", "checkpoint.resume=must"});
  const auto resumed = results_of({}, second);
  const auto weights = [](const std::set<std::string>& r) {
    return r.begin()->substr(r.begin()->find(' '));
  };
  CHECK(weights(resumed) == weights(whole));
}

TEST_CASE("the device time of a task is traced, and its delays run on the device") {
  const scratch_folder folder;
  const auto o = run_program(command({}, {"train.steps=2", "jitter.compute=lognormal"},
                                     {"--trace", folder / "trace.json", "--json", folder / "o"}));
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("GPU MiB"));
  const auto trace = nlohmann::json::parse(std::ifstream{folder / "trace.json"});
  std::size_t delayed = 0;
  for (const auto& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X" || !e.contains("args") || !e.at("args").contains("delay_us")) continue;
    const double delay = e.at("args").at("delay_us");
    CHECK(e.at("dur").get<double>() >= delay);
    delayed += delay > 0;
  }
  CHECK(delayed > 0);
}
