#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <sstream>

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

const std::string replicated = RRFP_SOURCE "/apps/jobs/eight_by_four.toml";

std::vector<std::string> lines_of_text(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
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
  for (const char* policy : {"bfw", "bfw_plus"}) {  // whose W runs in pieces
    const auto calm = job_without_jitter(folder, "policy = \"" + std::string{policy} + "\"\n");
    const auto csv = folder / "durations.csv";
    REQUIRE(run_program({RRFP_SIM, calm, "--set", "jitter.compute=lognormal", "--write-durations",
                         csv, "--json", folder / "a.json"})
                .code == 0);
    REQUIRE(run_program({RRFP_SIM, calm, "--durations", csv, "--json", folder / "b.json"}).code ==
            0);
    CHECK(json::parse(text_of(folder / "a.json")).at("makespan_ms") ==
          json::parse(text_of(folder / "b.json")).at("makespan_ms"));
  }
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

TEST_CASE("a table that lacks a task only in the order of admission is refused") {
  const scratch_folder folder;
  // This policy splits the backwards of some microbatches.
  const auto j = job_without_jitter(folder, "mode = \"in-order\"\npolicy = \"dualpipe_v\"\n");
  const auto csv = folder / "d.csv";
  const std::vector<std::string> sim{
      RRFP_SIM,           j, "--set", "pipeline.chunks=2", "--set", "pipeline.placement=v", "--set",
      "pipeline.stages=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), sim.begin(), sim.end());
    return run_program(more);
  };
  REQUIRE(with({"--set", "jitter.compute=lognormal", "--write-durations", csv}).code == 0);
  CHECK(with({"--durations", csv}).code == 0);
  const auto o = with({"--set", "dispatch.admission=small_large_small", "--durations", csv});
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("d.csv: durations: expected a row for B"));
}

TEST_CASE("a limit on bytes needs costs that count bytes") {
  const scratch_folder folder;
  const auto calm = job_without_jitter(folder, "slot_bytes = \"1MiB\"\n");
  const auto refused = run_program({RRFP_SIM, calm});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("calm.toml:5: dispatch.slot_bytes: expected 0, or cost.preset, "
                                   "which determines the bytes"));
}

TEST_CASE("a step that takes no time is as long as its lower bound") {
  const scratch_folder folder;
  const auto o =
      run_program({RRFP_SIM, job_without_jitter(folder, ""), "--set", "cost.forward_ms=0", "--set",
                   "cost.backward_ms=0", "--set", "cost.weight_ms=0"});
  CHECK(o.code == 0);
  CHECK_THAT(o.out, Contains("lower bound 0.000 ms (0.0 % above)"));
}

TEST_CASE("an option with an empty text is refused") {
  const auto o = run_program({RRFP_SIM, job, "--durations", ""});
  CHECK(o.code == 2);
  CHECK(o.err == "rrfp-sim: --durations: expected a value, got an empty text\n");
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

TEST_CASE("options of a job are refused beside traces, which would ignore them") {
  const std::string recorded = RRFP_SOURCE "/test/foreign/recorded/megatron.log";
  for (const auto& [option, value] :
       {std::pair{"--steps", "5"}, std::pair{"--set", "a.b=1"}, std::pair{"--durations", "x.csv"},
        std::pair{"--write-durations", "x.csv"}, std::pair{"--write-schedule", "x.csv"}}) {
    const auto o = run_program({RRFP_SIM, "--from", recorded, option, value});
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Contains("--from") && Contains(option));
  }
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
  const auto chart = run_program({RRFP_SIM, replicated, "--chart", folder / "x.svg"});
  CHECK(chart.code == 2);
  CHECK_THAT(chart.err, Contains("--chart needs --losses or --from"));
}

TEST_CASE("--losses prints a row for each way at each MTBF, and names the best") {
  const scratch_folder folder;
  const auto o = run_program({RRFP_SIM, replicated, "--losses", "1000,100", "--replace-s", "1800",
                              "--json", folder / "o.json", "--chart", folder / "o.svg"});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  const auto lines = lines_of_text(o.out);
  CHECK(lines.size() == 3 + 2 * 4 + 1);
  for (const auto& line : lines) CHECK(line.size() <= 80);
  CHECK_THAT(lines[0], Contains("32 nodes, a step takes 2.2"));
  CHECK_THAT(lines[1], Contains("Without the last node"));
  CHECK_THAT(lines[3], Contains("  100  reroute"));
  CHECK_THAT(lines[7], Contains(" 1000  reroute"));
  CHECK_THAT(lines.back(), Contains("reroute at an MTBF of 100 to 1000 h"));

  const auto told = json::parse(text_of(folder / "o.json"));
  CHECK(told.at("notice_s") == 10);
  CHECK(told.at("repair_s") == 1800);
  CHECK(told.at("slowdown").get<double>() > 1.3);
  CHECK(told.at("sentence") == lines.back());
  std::map<std::string, json> at;
  for (const auto& row : told.at("rows"))
    if (row.at("mtbf_h") == 100) at[row.at("way").get<std::string>()] = row;
  REQUIRE(at.size() == 4);
  const auto useful = [&](const char* way) { return at[way].at("useful").get<double>(); };
  CHECK(useful("reroute") > useful("replace"));
  CHECK(useful("replace") > useful("checkpoint"));
  CHECK(useful("checkpoint") > useful("restart"));
  CHECK(at["restart"].at("checkpoint_every") == 500);
  CHECK(at["checkpoint"].at("checkpoint_every").get<int>() < 500);
  CHECK(at["restart"].at("held_s").get<double>() > 1700);

  const auto chart = text_of(folder / "o.svg");
  CHECK(chart.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(chart.ends_with("</svg>\n"));
  for (const auto* way : {"reroute", "replace", "restart", "checkpoint"})
    CHECK_THAT(chart, Contains(">" + std::string{way} + "<"));
  CHECK(lines_of_text(chart).size() > 4 * 4);
}

TEST_CASE("the page shows what --losses prints") {
  const auto page = text_of(RRFP_SOURCE "/docs/experiments.md");
  std::string command;
  for (const auto& line : lines_of_text(page))
    if (line.starts_with("$ build/release/bin/rrfp-sim apps/jobs/eight_by_four.toml"))
      command = line.substr(line.find("apps/jobs"));
  REQUIRE_FALSE(command.empty());
  const scratch_folder folder;
  command.replace(command.find("/tmp/"), 5, folder / "");
  const auto o =
      run_program({"/bin/sh", "-c", "cd '" RRFP_SOURCE "' && '" RRFP_SIM "' " + command});
  REQUIRE(o.code == 0);
  INFO(o.out);
  CHECK(page.find("```\n" + o.out + "```\n") != std::string::npos);
}

TEST_CASE("more nodes of fewer ranks are lost more often, and those of one node together") {
  const scratch_folder folder;
  const auto losses = [&](const std::string& nodes) {
    const auto o = run_program(
        {RRFP_SIM, replicated, "--losses", "100", "--nodes", nodes, "--json", folder / "o.json"});
    INFO(o.err);
    REQUIRE(o.code == 0);
    return json::parse(text_of(folder / "o.json"));
  };
  const auto four = losses("4");  // a whole replica each
  CHECK(four.at("slowdown").get<double>() > 1.3);
  CHECK(four.at("slowdown").get<double>() < 1.7);
  CHECK(four.at("rows")[0].at("losses_a_day").get<double>() == Approx(24 * .04).epsilon(.1));
  CHECK(losses("5").at("nodes") == 5);
  const auto one = losses("1");
  CHECK_FALSE(one.contains("slowdown"));
  CHECK(one.at("rows")[0].at("from_checkpoint") == 1);
  CHECK(one.at("rows")[1].at("why_not") == "needs at least 2 nodes");
}

TEST_CASE("a job without replicas cannot go on without a node, and says so") {
  const scratch_folder folder;
  const auto calm = job_without_jitter(folder, "policy = \"bfw\"\n[checkpoint]\nevery = 10000\n");
  const auto o = run_program({RRFP_SIM, calm, "--losses", "100", "--json", folder / "o.json",
                              "--chart", folder / "o.svg"});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("reroute     needs pipeline.replicas of at least 2\n"));
  CHECK_THAT(o.out, Contains("Most useful time: replace"));
  const auto row = json::parse(text_of(folder / "o.json")).at("rows")[0];
  CHECK(row.at("why_not") == "needs pipeline.replicas of at least 2");
  CHECK_FALSE(row.contains("useful"));
  CHECK_THAT(text_of(folder / "o.svg"), !Contains(">reroute<"));
}

TEST_CASE("--losses refuses what it cannot use") {
  for (const auto& [arguments, why] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--losses", "100,0"}, "--losses: expected 0.001 to"},
           {{"--losses", "-3"}, "--losses: expected 0.001 to"},
           {{"--losses", "nan"}, "--losses: expected 0.001 to"},
           {{"--losses", "much"}, "--losses: expected 0.001 to"},
           {{"--losses", "100", "--nodes", "33"}, "at most as many nodes as ranks, 32, got 33"},
           {{"--losses", "100", "--nodes", "0"}, "--nodes: expected 1 to 4096, got 0"},
           {{"--losses", "100", "--restart-s", "-1"}, "--restart-s: expected 0 to"},
           {{"--losses", "100", "--gaps"}, "--gaps excludes --losses"},
           {{"--nodes", "4"}, "--nodes requires --losses"},
           {{"--losses", "100", "--chart", "/none/o.svg"}, "--chart"}}) {
    std::vector<std::string> command{RRFP_SIM, replicated};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const auto o = run_program(command);
    INFO(o.out << o.err);
    CHECK(o.code == 2);
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    CHECK_THAT(o.err, Contains(why));
  }
  const auto o = run_program({RRFP_SIM, job, "--losses", "100", "--chart", "/tmp/o.svg"});
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("--chart needs a job without [[compare]]"));
}
