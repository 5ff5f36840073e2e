// Delays per task from a job's file: applied by the runtime and by the simulator.
#include <catch2/catch.hpp>

#include <map>

#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

const std::string header = "step,stage,chunk,mb,kind,ms\n";

/// Two stages of a small model in order, two microbatches and four steps, with these delays.
std::string delayed_job(const scratch_folder& folder, const std::string& rows) {
  const auto file = folder / "job.toml";
  std::ofstream{folder / "delays.csv"} << header << rows;
  std::ofstream{file}
      << "[pipeline]\nstages = 2\nmicrobatches = 2\n"
         "[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n"
         "[model]\nlayers = 2\nhidden = 32\ncontext = 32\n"
         "[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\nsequence_length = 32\n"
         "[train]\nsteps = 4\n"
         "[cost]\nforward_ms = 0\nbackward_ms = 0\nweight_ms = 0\n"
         "[jitter]\ndelays = \"delays.csv\"\n";
  return file;
}

/// The delays of a trace in ms, by "STEP stage STAGE TASK"; tasks without a delay are left out.
std::map<std::string, double> delays_of(const std::string& file) {
  std::map<std::string, double> delays;
  const auto trace = json::parse(std::ifstream{file});
  for (const auto& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X" || e.at("cat") == "wait" || e.at("args").at("delay_us") == 0) continue;
    const auto key = std::to_string(e.at("args").at("step").get<int>()) + " stage " +
                     std::to_string(e.at("pid").get<int>()) + " " + e.at("name").get<std::string>();
    const auto ms = e.at("args").at("delay_us").get<double>() / 1000;
    delays[key] = ms;
  }
  return delays;
}

}  // namespace

TEST_CASE("a run applies the delays of its file, whose steps repeat, on every device") {
  const scratch_folder folder;
  const auto job = delayed_job(folder,
                               "1,0,0,1,F,30\n"
                               "2,1,0,0,B,20\n2,1,0,0,W,5\n"
                               "2,0,0,1,grad,40\n");
  const auto json_file = folder / "run.jsonl";
  const auto trace = folder / "run.json";
  for (const std::string device : {"cpu", "emulated"}) {
    const auto o = run_program({RRFP_NODE, "run", job, "--set", "device.kind=" + device, "--json",
                                json_file, "--trace", trace});
    INFO(device << o.out << o.err);
    REQUIRE(o.code == 0);
    CHECK(delays_of(trace) == std::map<std::string, double>{{"1 stage 0 F1", 30},
                                                            {"2 stage 1 BW0", 25},
                                                            {"3 stage 0 F1", 30},
                                                            {"4 stage 1 BW0", 25}});
    const auto steps = lines_of(json_file);
    REQUIRE(steps.size() == 5);
    // The slow message and the task before it, 65 ms, determine the time of these steps. An
    // emulated device makes good for a timer that woke late, so a step may take somewhat less.
    for (const std::size_t step : {1, 3}) CHECK(steps[step].at("step_ms") >= 55);
    for (const std::size_t step : {0, 2}) CHECK(steps[step].at("step_ms") >= 25);
  }
}

TEST_CASE("the simulator and check apply the same delays in addition to the costs") {
  const scratch_folder folder;
  const auto job = delayed_job(folder, "1,0,0,1,F,30\n2,1,0,0,BW,25\n2,0,0,1,grad,40\n");
  const auto simulated = run_program(
      {RRFP_SIM, job, "--steps", "4", "--set", "cost.forward_ms=1", "--json", folder / "o.json"});
  INFO(simulated.err);
  REQUIRE(simulated.code == 0);
  const auto report = json::parse(text_of(folder / "o.json"));
  std::vector<double> steps;
  for (const auto& step : report.at("steps")) steps.push_back(step.at("makespan_ms"));
  CHECK(steps == std::vector<double>{33, 68, 33, 68});
  const auto checked = run_program({RRFP_NODE, "check", job, "--set", "cost.forward_ms=1"});
  CHECK_THAT(checked.out, Contains("step 50.5 ms"));
  const auto slower = run_program(
      {RRFP_NODE, "check", job, "--set", "cost.forward_ms=1", "--set", "jitter.delays="});
  CHECK_THAT(slower.out, Contains("step 3.0 ms"));
}

TEST_CASE("wrong delays are refused with file and line, and nothing runs") {
  const scratch_folder folder;
  const auto job = delayed_job(folder, "1,0,0,0,F,1\n1,0,0,2,F,1\n");
  const auto location = job + ":21: jitter.delays: " + (folder / "delays.csv") + ":3: ";
  const std::vector<std::vector<std::string>> commands{
      {RRFP_NODE, "run", job},
      {RRFP_NODE, "run", job, "--local-nodes", "2"},
      {RRFP_NODE, "run", job, "--set", "device.kind=emulated"},
      {RRFP_NODE, "check", job},
      {RRFP_SIM, job}};
  for (const auto& command : commands) {
    const auto o = run_program(command);
    INFO(command[0] << " " << command[1] << o.err);
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Contains(location + "expected a microbatch from 0 to 1, got '2'"));
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
  }
  const auto absent =
      run_program({RRFP_NODE, "run", job, "--set", "jitter.delays=" + (folder / "none.csv")});
  CHECK(absent.code == 2);
  CHECK_THAT(absent.err, Contains("none.csv: cannot read " + (folder / "none.csv")));
}
