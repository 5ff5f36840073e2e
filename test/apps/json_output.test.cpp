/// docs/json-output.md describes the JSON and CSV of the programs: no key is missing on the page or
/// in the output. (recovery.test.cpp checks the line `recovery`.)
#include <catch2/catch.hpp>

#include <algorithm>

#include "json_lines.hpp"
#include "json_page.hpp"
#include "program.hpp"
#include "small_job.hpp"

namespace {

using namespace rrfp::test;

/// By event, the keys that the lines of a file had.
std::map<std::string, std::set<std::string>> check_lines(const std::string& file) {
  std::map<std::string, std::set<std::string>> had;
  for (const auto& line : lines_of(file)) {
    const auto event = line.at("event").get<std::string>();
    had[event].merge(check_documented(line, "`" + event + "`"));
  }
  return had;
}

/// Checks that all keys of the page were seen, but those that begin with one of `without`.
void check_all_seen(const std::string& heading, const std::set<std::string>& seen,
                    const std::vector<std::string>& without = {}) {
  for (const auto& [key, type] : documented_keys(heading)) {
    const auto is_left_out = std::any_of(without.begin(), without.end(),
                                         [&](const auto& begin) { return key.starts_with(begin); });
    INFO(heading << ": " << key);
    CHECK((is_left_out || seen.contains(key)));
  }
}

void run(const std::vector<std::string>& command, int code = 0) {
  const auto o = run_program(command);
  INFO(o.out << o.err);
  REQUIRE(o.code == code);
}

/// The columns of a CSV file.
std::string head_of(const std::string& file) {
  const auto text = text_of(file);
  return text.substr(0, text.find('\n'));
}

}  // namespace

TEST_CASE("the lines of rrfp-node are those of the page") {
  const small_job job{"text = [\"/usr/share/common-licenses/GPL-3\"]\nmicrobatch_size = 2\n",
                      "[eval]\ntext = [\"/usr/share/common-licenses/GPL-2\"]\nevery = 2\n"
                      "batches = 1\n"};
  const auto dir = "checkpoint.dir=" + job.at("saved");
  std::map<std::string, std::set<std::string>> seen;
  const auto add = [&](const std::string& file) {
    for (auto& [event, keys] : check_lines(file)) seen[event].merge(keys);
  };
  run(job.run(1, {dir, "checkpoint.every=2", "train.steps=4"}, {"--json", job.at("first.jsonl")}));
  add(job.at("first.jsonl"));
  run(job.run(1, {dir, "train.steps=6"}, {"--json", job.at("resumed.jsonl")}));
  add(job.at("resumed.jsonl"));
  for (const auto* event : {"step", "evaluation", "checkpoint", "resume", "summary"})
    CHECK(seen.contains(event));
  check_all_seen("`step`", seen["step"], {"is_skipped", "shares"});
  check_all_seen("`checkpoint`", seen["checkpoint"], {"failure"});
  check_all_seen("`summary`", seen["summary"], {"message", "stages[].device_"});
}

TEST_CASE("the line of a straggler is that of the page") {
  const scratch_folder folder;
  std::ofstream{folder / "job.toml"} << "[pipeline]\nstages = 2\nmicrobatches = 4\n"
                                        "[model]\nlayers = 2\n[device]\nkind = \"emulated\"\n"
                                        "[train]\nsteps = 25\n[cost]\nforward_ms = [1, 4]\n"
                                        "backward_ms = [1, 4]\nweight_ms = [1, 4]\n";
  run({RRFP_NODE, "run", folder / "job.toml", "--json", folder / "out.jsonl"});
  CHECK(check_lines(folder / "out.jsonl").contains("straggler"));
}

TEST_CASE("the lines of rrfp-sim are those of the page") {
  const scratch_folder folder;
  std::ofstream{folder / "job.toml"} << "[pipeline]\nstages = 4\nmicrobatches = 8\n";
  std::set<std::string> seen;
  run({RRFP_SIM, folder / "job.toml", "--steps", "2", "--json", folder / "out.jsonl"});
  for (const auto& line : lines_of(folder / "out.jsonl"))
    seen.merge(check_documented(line, "A simulation"));
  check_all_seen("A simulation", seen);
}

TEST_CASE("the costs of losses are those of the page") {
  const scratch_folder folder;
  std::set<std::string> seen;
  for (const std::string replicas : {"1", "2"}) {
    std::ofstream{folder / "job.toml"} << "[pipeline]\nstages = 2\nreplicas = " + replicas + "\n";
    run({RRFP_SIM, folder / "job.toml", "--losses", "100", "--json", folder / "out.jsonl"});
    for (const auto& line : lines_of(folder / "out.jsonl"))
      seen.merge(check_documented(line, "The cost of losses"));
  }
  check_all_seen("The cost of losses", seen);
}

TEST_CASE("the forecast of rrfp-sim is that of the page") {
  const scratch_folder folder;
  const std::string recorded = RRFP_SOURCE "/test/foreign/recorded/";
  std::set<std::string> seen;
  run({RRFP_SIM, "--from", recorded + "rank0.json", recorded + "rank1.json", "--json",
       folder / "out.jsonl"});
  for (const auto& line : lines_of(folder / "out.jsonl"))
    seen.merge(check_documented(line, "A forecast"));
  check_all_seen("A forecast", seen);
}

TEST_CASE("the files of rrfp-jitter are those of the page") {
  const scratch_folder folder;
  std::ofstream{folder / "small.toml"}
      << "name = \"small\"\nseeds = [1, 2, 4]\ntrain.steps = 2\n[[workload]]\nname = \"w\"\n"
         "pipeline.stages = 2\npipeline.microbatches = 4\n[[run]]\nname = \"1F1B\"\n"
         "dispatch.policy = \"one_f_one_b\"\ndispatch.mode = \"in-order\"\n[[run]]\n"
         "name = \"a \\\"ready\\\" & <fast> one\"\n[[weather]]\njitter.level = \"J2\"\n";
  run({RRFP_JITTER, folder / "small.toml", "--out", folder / "out"});
  const auto results = nlohmann::json::parse(text_of(folder / "out/results.json"));
  check_documented(results, "`results.json`");
  std::set<std::string> seen;
  for (const auto& cell : results.at("cells")) seen.merge(check_documented(cell, "A cell"));
  check_all_seen("A cell", seen);

  const auto page = text_of(RRFP_SOURCE "/docs/json-output.md");
  std::string columns = head_of(folder / "out/summary.csv");
  std::replace(columns.begin(), columns.end(), ',', ' ');
  const auto described = page.substr(page.find("### `summary.csv`"));
  std::istringstream all{columns};
  for (std::string column; all >> column;) {
    INFO(column);
    CHECK(described.find("`" + column + "`") != std::string::npos);
  }
  CHECK(head_of(folder / "out/results.csv")
            .starts_with(
                "cell,engine,workload,weather,run,mode,policy,hint,seed,mean_ms,idle,blocked,"));
}
