/// The program on a small experiment: tables, files, resuming, one cell, refusals.
#include <catch2/catch.hpp>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "json_lines.hpp"
#include "program.hpp"
#include "refused.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

constexpr int cells = 2 * 3 * 2;  ///< weathers, runs, seeds

std::string small_experiment(const scratch_folder& folder, const std::string& more = "") {
  const auto file = folder / "small.toml";
  std::ofstream{file}
      << "name = \"small\"\nseeds = [1, 2]\ntrain.steps = 2\n"
         "ablation = [\"blocking\", \"in order\", \"ready\"]\n"
         "[[workload]]\nname = \"four stages\"\ncost.preset = \"qwen3-1.7b-vit-h\"\n"
         "pipeline.stages = 4\npipeline.microbatches = 12\npaper.in_order_s = 1\npaper.bfw = 1.5\n"
         "[[run]]\nname = \"blocking\"\ndispatch.mode = \"in-order\"\ndispatch.messages = "
         "\"blocking\"\n"
         "dispatch.policy = \"one_f_one_b\"\n"
         "[[run]]\nname = \"in order\"\ndispatch.mode = \"in-order\"\n"
         "dispatch.policy = \"one_f_one_b\"\n"
         "[[run]]\nname = \"ready\"\ndispatch.policy = \"bfw\"\npaper = \"bfw\"\n"
         "[[weather]]\njitter.level = \"measured\"\n[[weather]]\njitter.level = \"J2\"\n"
      << more;
  return file;
}

outcome run_jitter(const std::vector<std::string>& arguments) {
  auto all = arguments;
  all.insert(all.begin(), RRFP_JITTER);
  auto o = run_program(all);
  INFO(o.out << o.err);
  return o;
}

std::size_t count_lines(const std::string& file) {
  const auto text = text_of(file);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("a small experiment prints its tables and writes JSON and CSV") {
  const scratch_folder folder;
  const auto o = run_jitter({small_experiment(folder), "--out", folder / "out"});
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("small: 12 cells on the simulator, 2 seeds of 2 steps") &&
                        Contains("four stages - weather measured") &&
                        Contains("four stages - weather J2") && Contains("ablation") &&
                        Contains("at or above the paper"));
  const auto results = json::parse(text_of(folder / "out/results.json"));
  CHECK(results.at("experiment") == "small");
  CHECK(results.at("baseline") == "blocking");
  REQUIRE(results.at("cells").size() == cells);
  const auto ms = [&](int cell) { return results["cells"][cell]["mean_ms"].get<double>(); };
  CHECK(ms(0) > ms(2));  // blocking, in order, of seed 1
  CHECK(ms(2) > ms(4));  // ready
  CHECK(count_lines(folder / "out/results.csv") == cells + 1);
  CHECK(count_lines(folder / "out/summary.csv") == cells / 2 + 1);  // two seeds
  CHECK(text_of(folder / "out/figure.svg").ends_with("</svg>\n"));
  const auto page = text_of(folder / "out/report.html");
  CHECK_THAT(page, Contains("<title>small</title>") && Contains("Engine: simulator") &&
                       Contains("weather J2") && Contains("Gain of each ingredient"));
  CHECK(page.ends_with("</html>\n"));
}

TEST_CASE("cells that are done are not run again, and results stay the same") {
  const scratch_folder folder;
  const auto file = small_experiment(folder);
  REQUIRE(run_jitter({file, "--out", folder / "out"}).code == 0);
  const auto results = text_of(folder / "out/results.json");
  const auto again = run_jitter({file, "--out", folder / "out"});
  CHECK(again.code == 0);
  CHECK_THAT(again.err, Contains("12 of 12 cells were already done"));
  CHECK(text_of(folder / "out/results.json") == results);
  CHECK(count_lines(folder / "out/cells.jsonl") == cells);

  // With another run, only the cells of that run are new.
  const auto more =
      run_jitter({small_experiment(folder, "[[run]]\nname = \"bf\"\ndispatch.policy = \"bf\"\n"),
                  "--out", folder / "out"});
  CHECK(more.code == 0);
  CHECK_THAT(more.err, Contains("12 of 16 cells were already done"));
  CHECK(count_lines(folder / "out/cells.jsonl") == 16);
}

TEST_CASE("a torn file is detected, and its lost cells run again to the same results") {
  const scratch_folder folder;
  const auto file = small_experiment(folder);
  REQUIRE(run_jitter({file, "--out", folder / "out"}).code == 0);
  const auto results = text_of(folder / "out/results.json");
  const auto kept = text_of(folder / "out/cells.jsonl");
  std::ofstream{folder / "out/cells.jsonl"} << kept.substr(0, kept.size() - 40);
  const auto again = run_jitter({file, "--out", folder / "out"});
  CHECK(again.code == 0);
  CHECK_THAT(again.err, Contains("cells.jsonl:12: incomplete line, its cell runs again") &&
                            Contains("11 of 12 cells were already done"));
  CHECK(text_of(folder / "out/results.json") == results);
  CHECK(text_of(folder / "out/cells.jsonl") == kept);
}

TEST_CASE("one cell alone gives the same result as among the others") {
  const scratch_folder folder;
  const auto file = small_experiment(folder);
  REQUIRE(run_jitter({file, "--out", folder / "out"}).code == 0);
  const auto results = json::parse(text_of(folder / "out/results.json"));
  for (const int number : {0, 5, 11}) {
    const auto one = run_jitter({file, "--cell", std::to_string(number)});
    REQUIRE(one.code == 0);
    CHECK(json::parse(one.out) == results["cells"][static_cast<std::size_t>(number)]);
  }
}

TEST_CASE("the runtime runs what the simulator runs, and the two are compared") {
  const scratch_folder folder;
  const auto file = small_experiment(folder);
  const auto o = run_jitter(
      {file, "--out", folder / "out", "--engine", "both", "--time-scale", "0.2", "--jobs", "3"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("small: 12 cells on the simulator") &&
                        Contains("small: 12 cells on the wall clock (time scale 0.2)") &&
                        Contains("wall clock minus simulator") && Contains("all cells") &&
                        Contains("machine: "));
  const auto results = json::parse(text_of(folder / "out/results.json"));
  REQUIRE(results.at("cells").size() == 2 * cells);
  for (int i = 0; i < cells; ++i) {
    const auto& simulated = results["cells"][i];
    const auto& measured = results["cells"][cells + i];
    CHECK(simulated.at("engine") == "simulator");
    CHECK(measured.at("engine") == "wall clock");
    CHECK(measured.at("run") == simulated.at("run"));
    CHECK(measured.at("mean_ms") > 0.5 * simulated.at("mean_ms").get<double>());
  }
  const auto again =
      run_jitter({file, "--out", folder / "out", "--engine", "both", "--time-scale", "0.2"});
  CHECK_THAT(again.err, Contains("12 of 12 cells were already done on the wall clock"));
}

TEST_CASE("all cells of one seed run before those of the next") {
  const scratch_folder folder;
  const auto o = run_jitter({small_experiment(folder), "--out", folder / "out", "--engine",
                             "wall-clock", "--time-scale", "0.02", "--jobs", "1"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  std::ifstream file{folder / "out/cells.jsonl"};
  int ran = 0;
  for (std::string line; std::getline(file, line); ++ran) {
    INFO(line);
    const bool is_second = line.find(" jitter.seed=2 ") != std::string::npos;
    CHECK(is_second == (ran >= cells / 2));
  }
  CHECK(ran == cells);
}

TEST_CASE("an interrupted experiment keeps its finished cells and resumes from there") {
  const scratch_folder folder;
  const auto file = small_experiment(folder);
  const std::vector<std::string> command{RRFP_JITTER, file,         "--out",        folder / "out",
                                         "--engine",  "wall-clock", "--time-scale", "0.5",
                                         "--jobs",    "1"};
  program running{command};
  const auto store = folder / "out/cells.jsonl";
  for (int i = 0; i < 600 && (!std::filesystem::exists(store) || count_lines(store) == 0); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  running.signal(SIGINT);
  const auto o = running.wait();
  CHECK(o.code == 130);
  CHECK_THAT(o.err, Contains("interrupted; run the same command to resume"));
  const auto kept = count_lines(store);
  CHECK(kept >= 1);
  CHECK(kept < cells);
  const auto rest = run_program(command);
  CHECK(rest.code == 0);
  CHECK(count_lines(store) == cells);
}

TEST_CASE("bad experiments and arguments are refused in one line, and nothing is left behind") {
  const scratch_folder folder;
  const auto out = folder / "out";
  const auto bad =
      small_experiment(folder, "[[run]]\nname = \"x\"\ndispatch.messages = \"blocking\"\n");
  require_refused(
      run_jitter({bad, "--out", out}),
      {"small.toml:31: dispatch.messages: \"blocking\" expects dispatch.mode", "run \"x\""});
  CHECK_FALSE(std::filesystem::exists(out));
  const auto file = small_experiment(folder);
  require_refused(run_jitter({folder / "absent.toml", "--out", out}),
                  {"absent.toml: cannot be read: No such file"});
  require_refused(run_jitter({file, "--cell", "12"}), {"--cell", "below 12", "got 12"});
  require_refused(run_jitter({file}), {"--out FOLDER, --cell N or --losses HOURS"});
  require_refused(run_jitter({"--out", out}), {"an experiment file"});
  require_refused(run_jitter({file, "--out", "/proc/none"}), {"--out: /proc/none: cannot create"});
  CHECK(run_jitter({file, "--nonsense"}).code == 2);
}

TEST_CASE("--keys prints all keys") {
  const auto o = run_jitter({"--keys"});
  CHECK(o.code == 0);
  CHECK_THAT(o.out, Contains("[[weather]]") && Contains("jitter.stall_factor = 48.97"));
}

TEST_CASE("cells run as jobs of several processes, with a fault where the weather has one") {
  const scratch_folder folder;
  // A step takes longer than it takes to see its end and to stop a process, also on a busy machine.
  const std::string head =
      "engine = \"processes\"\nnodes = 2\nseeds = [1]\ntrain.steps = 4\n"
      "jitter.link = \"constant\"\njitter.link_mean_ms = 40\n";
  const std::string tables =
      "[[workload]]\nname = \"w\"\npipeline.stages = 2\npipeline.microbatches = 4\n"
      "pipeline.replicas = 2\n[[run]]\nname = \"in order\"\ndispatch.mode = \"in-order\"\n"
      "dispatch.policy = \"one_f_one_b\"\n[[run]]\nname = \"ready\"\n"
      "[[weather]]\nname = \"calm\"\n"
      "[[weather]]\nname = \"stopped\"\nfault = { kind = \"stop\", node = 1, step = 2, seconds = "
      "0.7 "
      "}\n[[weather]]\nname = \"killed\"\nfault = { kind = \"kill\", node = 1, step = 2 }\n";
  const auto run = [&](const std::string& more, const std::string& name) {
    std::ofstream{folder / (name + ".toml")} << head << more << tables;
    const auto o = run_jitter({folder / (name + ".toml"), "--out", folder / name});
    INFO(o.err);
    REQUIRE(o.code == 0);
    CHECK_THAT(o.out, Contains(name + ": 6 cells on 2 nodes"));
    const auto cells = json::parse(text_of(folder / name + "/results.json")).at("cells");
    REQUIRE(cells.size() == 6);
    for (const auto& cell : cells) {
      INFO(cell);
      CHECK(cell.at("engine") == "processes");
      const auto& measured = cell.at("outcome");
      REQUIRE(measured.at("step_ms").size() == 4);
      // The step in which the node stood still, or was lost and started again.
      double most = 0;
      for (const auto& ms : measured.at("step_ms")) most = std::max(most, ms.get<double>());
      if (cell.at("weather") == "stopped") CHECK(most > 600);
      CHECK(measured.at("slots_peak") >= 2);
      CHECK(measured.at("idle").get<double>() > 0);
    }
    return cells;
  };
  run("recovery.max_restarts = 1\ncost.forward_ms = 5\n", "emulated");

  std::ofstream{folder / "job.toml"}
      << "[model]\nlayers = 2\nhidden = 16\nheads = 2\ncontext = 16\n"
         "[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\n"
         "microbatch_size = 1\nsequence_length = 16\n"
         "[recovery]\nmax_restarts = 1\n";
  if (RRFP_TORCH) run("job = \"job.toml\"\n", "trained");

  // What only processes can do.
  require_refused(run_jitter({folder / "emulated.toml", "--out", folder / "x", "--engine", "both"}),
                  {"weather \"stopped\"", "fault.kind: expected engine = \"processes\""});
  std::ofstream{folder / "no_restarts.toml"} << head << tables;
  require_refused(run_jitter({folder / "no_restarts.toml", "--out", folder / "x"}),
                  {"recovery.max_restarts: expected at least 1 with fault.kind = \"kill\", got 0"});
}

TEST_CASE("--losses says what losses cost each run, and writes it as JSON") {
  const scratch_folder folder;
  const auto o = run_jitter({small_experiment(folder), "--losses", "1000,100", "--replace-s",
                             "1800", "--out", folder / "out"});
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("four stages - weather measured, 4 nodes, MTBF of a node 100 h"));
  CHECK_THAT(o.out, Contains("four stages - weather J2, 4 nodes, MTBF of a node 1000 h"));
  const auto runs = lines_of(folder / "out/losses.jsonl");
  REQUIRE(runs.size() == 2 * 3);  // weathers, runs
  CHECK(runs[4].at("run") == "in order");
  CHECK(runs[4].at("weather") == "J2");
  for (const auto& run : runs) {
    const auto& rows = run.at("rows");
    REQUIRE(rows.size() == 2 * 4);  // MTBFs, ways
    CHECK(rows[0].at("why_not") == "needs pipeline.replicas of at least 2");
    CHECK(rows[1].at("checkpoint_every") == rows[3].at("checkpoint_every"));
    CHECK(rows[1].at("useful") > rows[3].at("useful"));
    CHECK(rows[5].at("useful") > rows[1].at("useful"));
  }
  require_refused(run_jitter({small_experiment(folder), "--losses", "100", "--nodes", "9"}),
                  {"small.toml: cell 0", "expected at most as many nodes as ranks, 4, got 9"});
  require_refused(run_jitter({small_experiment(folder), "--losses", "100", "--cell", "0"}),
                  {"--cell excludes --losses"});
}
