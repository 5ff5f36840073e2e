#include <catch2/catch.hpp>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

const std::string job = RRFP_SOURCE "/apps/jobs/sixteen_stages.toml";

/// Four stages, equal costs, no jitter.
std::string job_without_jitter(const scratch_folder& folder, const std::string& dispatch) {
  const auto file = folder / "calm.toml";
  std::ofstream{file} << "[pipeline]\nstages = 4\nmicrobatches = 8\n[dispatch]\n" << dispatch;
  return file;
}

}  // namespace

TEST_CASE("the 16-stage job shows what readiness gains") {
  const scratch_folder folder;
  const auto o = run_program({RRFP_SIM, job, "--steps", "5", "--json", folder / "o.json"});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("makespan") && Contains("input") && Contains("order"));
  std::vector<json> runs;
  std::ifstream in{folder / "o.json"};
  for (std::string line; std::getline(in, line);) runs.push_back(json::parse(line));
  REQUIRE(runs.size() == 3);
  const auto ms = [&](int run) {
    return runs[static_cast<std::size_t>(run)].at("makespan_ms").get<double>();
  };
  CHECK(ms(0) / ms(2) > 1.40);
  for (int run = 0; run < 3; ++run)
    CHECK(ms(run) >= runs[static_cast<std::size_t>(run)].at("lower_bound_ms").get<double>());
}

TEST_CASE("written durations are simulated to the same time") {
  const scratch_folder folder;
  const auto calm = job_without_jitter(folder, "policy = \"bfw\"\n");
  const auto csv = folder / "durations.csv";
  REQUIRE(run_program({RRFP_SIM, calm, "--set", "jitter.compute=lognormal", "--write-durations",
                       csv, "--json", folder / "a.json"})
              .code == 0);
  REQUIRE(run_program({RRFP_SIM, calm, "--durations", csv, "--json", folder / "b.json"}).code == 0);
  CHECK(json::parse(text_of(folder / "a.json")).at("makespan_ms") ==
        json::parse(text_of(folder / "b.json")).at("makespan_ms"));
}

TEST_CASE("a written schedule is a table that gives the same order") {
  const scratch_folder folder;
  const auto csv = folder / "zb.csv";
  const auto calm = job_without_jitter(folder, "mode = \"in-order\"\npolicy = \"zb_h1\"\n");
  REQUIRE(run_program({RRFP_SIM, calm, "--write-schedule", csv}).code == 0);
  CHECK_THAT(text_of(csv), Catch::Matchers::StartsWith("0F0,"));
  const auto again =
      job_without_jitter(folder, "mode = \"in-order\"\npolicy = \"table:" + csv + "\"\n");
  REQUIRE(run_program({RRFP_SIM, again, "--write-schedule", folder / "again.csv"}).code == 0);
  CHECK(text_of(folder / "again.csv") == text_of(csv));
}

TEST_CASE("--gaps explains every gap") {
  const scratch_folder folder;
  const auto calm = job_without_jitter(folder, "mode = \"in-order\"\npolicy = \"one_f_one_b\"\n");
  const auto o = run_program({RRFP_SIM, calm, "--gaps"});
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("ms  in_order BW0") &&
                        Contains("step 1 stage 0  30.000 to 31.000 ms  input BW7"));
}

TEST_CASE("an incomplete table of durations is refused") {
  const scratch_folder folder;
  const auto calm = job_without_jitter(folder, "policy = \"bfw\"\n");
  std::ofstream{folder / "d.csv"} << "step,stage,chunk,mb,kind,ms\n1,0,0,0,F,1\n";
  const auto o = run_program({RRFP_SIM, calm, "--durations", folder / "d.csv"});
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("d.csv"));
  std::ofstream{folder / "d.csv"} << "step,stage,chunk,mb,kind,ms\n1,0,0,0,Q,1\n";
  CHECK_THAT(run_program({RRFP_SIM, calm, "--durations", folder / "d.csv"}).err,
             Contains("d.csv:2") && Contains("Q"));
}

TEST_CASE("a recorded run is replayed and compared with other schedules") {
  const std::string recorded = RRFP_SOURCE "/test/foreign/recorded/";
  const auto o =
      run_program({RRFP_SIM, "--from", recorded + "rank1.json", recorded + "rank0.json"});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("2 stages, 1 chunks, 4 microbatches, 1 steps; order one_f_one_b"));
  CHECK_THAT(o.out, Contains("The replay is 0.0 % off the measured steps"));
  CHECK_THAT(o.out, Contains("bfw_plus *") && Contains("readiness (bf)"));
  const scratch_folder folder;
  const auto page = run_program({RRFP_REPORT, recorded + "rank0.json", recorded + "rank1.json",
                                 "--out", folder / "page.html", "--profile", folder / "run.csv"});
  INFO(page.err);
  CHECK(page.code == 0);
  CHECK_THAT(page.out, Contains("Tasks are found by autograd's operators"));
  CHECK_THAT(text_of(folder / "run.csv"), Contains("step,stage,chunk,mb,kind,ms"));
}

TEST_CASE("traces that cannot be read end rrfp-sim --from with one line and exit code 2") {
  const scratch_folder folder;
  const std::string recorded = RRFP_SOURCE "/test/foreign/recorded/rank0.json";
  std::ofstream{folder / "cut.json"} << text_of(recorded).substr(0, 5000);
  std::ofstream{folder / "words.txt"} << "hello\n";
  for (const auto& [file, why] :
       {std::pair{folder / "cut.json", "JSON that ends too early"},
        std::pair{folder / "words.txt", "expected a trace of rrfp-node run --trace, of torch."},
        std::pair{folder / "none.json", "cannot read: No such file"},
        std::pair{folder / "", "folder"},
        std::pair{recorded, "expected the traces of all ranks of the pipeline"}}) {
    const auto o = run_program({RRFP_SIM, "--from", file});
    INFO(file << ": " << o.out << o.err);
    CHECK(o.code == 2);
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    CHECK_THAT(o.err, Contains(why) && Contains(file));
  }
  const auto o = run_program({RRFP_SIM});
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("expected a job, or --from TRACE..."));
}
