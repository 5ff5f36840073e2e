/// rrfp-node on emulated devices, which needs no framework.
#include <catch2/catch.hpp>

#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

std::string emulated_job(const scratch_folder& folder) {
  const auto file = folder / "emulated.toml";
  std::ofstream{file} << R"([pipeline]
stages = 4
microbatches = 8
[train]
steps = 5
[device]
kind = "emulated"
[cost]
forward_ms = 1
backward_ms = 1
weight_ms = 1
[jitter]
compute = "lognormal"
compute_sigma = 0.5
)";
  return file;
}

}  // namespace

TEST_CASE("an emulated job runs in one process and in several, and its trace becomes a page") {
  const scratch_folder folder;
  const auto job = emulated_job(folder);
  const auto trace = folder / "trace.json", page = folder / "page.html";
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, std::vector<std::string>{"--local-nodes", "2"}}) {
    std::vector<std::string> command{RRFP_NODE, "run", job, "--trace", trace};
    command.insert(command.end(), how.begin(), how.end());
    const auto ran = run_program(command);
    INFO(ran.out << ran.err);
    REQUIRE(ran.code == 0);
    CHECK_THAT(ran.out, Contains("step ms"));
    const auto shown = run_program({RRFP_REPORT, trace, "--out", page});
    INFO(shown.err);
    CHECK(shown.code == 0);
  }
}

TEST_CASE("check predicts an emulated job") {
  const scratch_folder folder;
  const auto o = run_program({RRFP_NODE, "check", emulated_job(folder)});
  INFO(o.out << o.err);
  CHECK(o.code == 0);
}

#if !RRFP_TORCH
TEST_CASE("a job that trains is refused by a program without a framework") {
  const scratch_folder folder;
  for (const std::string command : {"run", "check"}) {
    const auto o =
        run_program({RRFP_NODE, command, emulated_job(folder), "--set", "device.kind=\"cpu\"",
                     "--set", "data.text=/usr/share/common-licenses/GPL-3"});
    CHECK(o.code == 2);
    CHECK_THAT(o.err,
               Contains("device.kind") &&
                   Contains("expected \"emulated\": this program was built without libtorch"));
  }
}
#endif
