#include <catch2/catch.hpp>

#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

const std::string quickstart = RRFP_SOURCE "/apps/jobs/quickstart.toml";

const std::vector<std::string> short_run{RRFP_NODE,       "run",   quickstart,           "--set",
                                         "train.steps=3", "--set", "jitter.compute=none"};

/// The short run and its outputs, once for all tests.
struct quickstart_run {
  quickstart_run() {
    auto arguments = short_run;
    arguments.insert(arguments.end(), {"--json", json_file, "--trace", trace_file});
    o = run_program(arguments);
  }

  scratch_folder folder;
  const std::string json_file = folder / "out.jsonl";
  const std::string trace_file = folder / "trace.json";
  outcome o;
};

const quickstart_run& quickstart_ran() {
  static const quickstart_run ran;
  return ran;
}

std::size_t longest_line(const std::string& text) {
  std::istringstream in{text};
  std::size_t longest = 0;
  for (std::string line; std::getline(in, line);) longest = std::max(longest, line.size());
  return longest;
}

}  // namespace

TEST_CASE("the quickstart trains both ways to the same bits and prints the table") {
  const auto& o = quickstart_ran().o;
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("speed-up") && Contains("equal to the last bit") &&
                        Contains(quickstart_ran().trace_file));

  const auto lines = lines_of(quickstart_ran().json_file);
  REQUIRE(lines.size() == 2 * (3 + 1));
  const auto& in_order = lines[3];
  const auto& ready = lines[7];
  for (const auto* summary : {&in_order, &ready}) {
    CHECK(summary->at("event") == "summary");
    for (const char* key : {"mode", "policy", "loss_first", "loss_last", "losses_xxh64",
                            "weights_xxh64", "step_ms_p50", "bubble_fraction", "peak_slots"})
      CHECK(summary->contains(key));
  }
  CHECK(in_order.at("mode") == "in-order");
  CHECK(ready.at("policy") == "bfw");
  CHECK(in_order.at("losses_xxh64") == ready.at("losses_xxh64"));
  CHECK(in_order.at("weights_xxh64") == ready.at("weights_xxh64"));
  CHECK(in_order.at("peak_slots") == 4);

  const auto trace = json::parse(std::ifstream{quickstart_ran().trace_file});
  std::size_t tasks = 0;
  for (const auto& e : trace.at("traceEvents")) tasks += e.at("ph") == "X" && e.at("cat") != "wait";
  CHECK(tasks == 3 * 4 * 16 * (2 + 3));
}

TEST_CASE("on a terminal, progress is one bar that fits its width; elsewhere it is plain lines") {
  std::string command = "stty cols 60;";
  for (const auto& argument : short_run) command += " " + argument;
  command += " --set pipeline.microbatches=4";
  const auto on_terminal = run_program({"/usr/bin/script", "-qec", command, "/dev/null"});
  INFO(on_terminal.out << on_terminal.err);
  REQUIRE(on_terminal.code == 0);
  CHECK_THAT(on_terminal.out,
             Contains("\r[######--------------] ") && Contains("\r[####################] "));
  // What does not fit is left out, the speed first; at 60 columns a line still tells how long it
  // takes.
  CHECK_THAT(on_terminal.out, Contains("step 3/3") && Contains("bubble") && Contains("ETA 00:00") &&
                                  !Contains("tokens/s"));
  for (std::size_t at = 0; (at = on_terminal.out.find("\r[", at)) != std::string::npos; ++at)
    CHECK(on_terminal.out.find_first_of("\r\n", at + 1) - at - 1 < 60);

  CHECK_THAT(quickstart_ran().o.out,
             Contains("step 3/3  loss ") && !Contains("\r") && !Contains("[#"));
}

TEST_CASE("the table fits 80 columns, whatever the names of the runs") {
  const auto table_in = [](const std::string& out) {
    const auto from = out.find("\nrun");
    return from == std::string::npos ? "" : out.substr(from, out.find(" and ", from) - from);
  };
  const auto& plain = quickstart_ran().o;
  INFO(plain.out);
  CHECK_THAT(table_in(plain.out), Contains("\nin-order 1F1B ") && Contains(" weights\n"));
  CHECK(longest_line(table_in(plain.out)) <= 80);

  const scratch_folder folder;
  std::ofstream{folder / "job.toml"}
      << "[pipeline]\nstages = 2\nmicrobatches = 2\n[model]\nlayers = 2\nhidden = 32\n"
         "[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\n[eval]\n"
         "text = [\"/usr/share/common-licenses/GPL-2\"]\nevery = 1\nbatches = 1\n"
         "[train]\nsteps = 1\n"
         "[[compare]]\nname = \"a run whose name is as long as the names of runs can get\"\n"
         "[[compare]]\nname = \"another\"\n";
  const auto named = run_program({RRFP_NODE, "run", folder / "job.toml"});
  INFO(named.out << named.err);
  REQUIRE(named.code == 0);
  CHECK_THAT(table_in(named.out), Contains("\nanother\n  ") && Contains("held-out"));
  CHECK(longest_line(table_in(named.out)) <= 80);
}

TEST_CASE("an emulated run shows no loss") {
  const auto o = run_program({RRFP_NODE, "run", RRFP_SOURCE "/apps/jobs/sixteen_stages.toml",
                              "--set", "device.kind=emulated", "--set", "train.steps=1"});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("step 1/1  ") && !Contains("loss 0"));
}

TEST_CASE("the pictures train both ways to the same bits, and without pictures to other bits") {
  const scratch_folder folder;
  const auto o = run_program({RRFP_NODE, "run", RRFP_SOURCE "/apps/jobs/shapes.toml", "--set",
                              "train.steps=4", "--json", folder / "out.jsonl"});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("samples of shapes") &&
                        Contains("in-order 1F1B and ready BFW: losses and weights are equal to the "
                                 "last bit"));
  const auto lines = lines_of(folder / "out.jsonl");
  REQUIRE(lines.size() == 3 * (4 + 1));
  CHECK(lines[4].at("losses_xxh64") == lines[9].at("losses_xxh64"));
  CHECK(lines[14].at("losses_xxh64") != lines[9].at("losses_xxh64"));
  CHECK(lines[9].at("loss_last").get<double>() < lines[9].at("loss_first").get<double>());
}

TEST_CASE(
    "runs with other numbers of ranks or replicas are shown beside each other, not compared") {
  const scratch_folder folder;
  const auto job_file = folder / "ranks.toml";
  std::ofstream{job_file} << "[model]\nlayers = 2\nhidden = 32\ncontext = 32\n"
                             "[pipeline]\nstages = 2\nmicrobatches = 4\n"
                             "[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\n"
                             "microbatch_size = 1\nsequence_length = 32\n[train]\nsteps = 2\n"
                             "[[compare]]\nname = \"tp 1\"\n"
                             "[[compare]]\nname = \"tp 2\"\npipeline.tp = 2\n"
                             "[[compare]]\nname = \"two replicas\"\npipeline.replicas = 2\n";
  const auto o = run_program({RRFP_NODE, "run", job_file});
  INFO(o.out << o.err);
  CHECK(o.code == 0);
  CHECK_THAT(o.out, Contains("tp 2 ") && Contains("two replicas ") && !Contains("last bit"));
}

TEST_CASE("evaluations on held-out text come in time, in lines, JSON and the table, and the same") {
  const scratch_folder folder;
  auto arguments = short_run;
  for (const auto* s :
       {"eval.text=/usr/share/common-licenses/GPL-3", "eval.every=2", "eval.batches=3"})
    arguments.insert(arguments.end(), {"--set", s});
  arguments.insert(arguments.end(), {"--json", folder / "out.jsonl"});
  const auto o = run_program(arguments);
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("step 2/3  held-out loss 5.") && Contains("held-out  weights") &&
                        Contains("equal to the last bit"));
  std::vector<json> evaluations, steps, summaries;
  for (const auto& line : lines_of(folder / "out.jsonl"))
    (line.at("event") == "evaluation" ? evaluations
     : line.at("event") == "step"     ? steps
                                      : summaries)
        .push_back(line);
  REQUIRE(steps.size() == 6);
  REQUIRE(evaluations.size() == 4);
  REQUIRE(summaries.size() == 2);
  for (const std::size_t run : {0, 1}) {
    CHECK(evaluations[2 * run].at("step") == 2);
    CHECK(evaluations[2 * run + 1].at("step") == 3);
    CHECK(evaluations[2 * run].at("tokens") == 3 * 16 * 64);
    CHECK(evaluations[2 * run].at("loss") != evaluations[2 * run + 1].at("loss"));
    CHECK(summaries[run].at("eval_loss") == evaluations[2 * run + 1].at("loss"));
    CHECK(summaries[run].at("steps") == 3);
  }
  CHECK(evaluations[0].at("loss") == evaluations[2].at("loss"));
  CHECK(summaries[0].at("eval_losses_xxh64") == summaries[1].at("eval_losses_xxh64"));
}

TEST_CASE("odd sizes train to the bits of one stage") {
  const scratch_folder folder;
  const auto one = folder / "one.toml";
  std::ofstream{one} << "[model]\nlayers = 3\nhidden = 32\ncontext = 32\ntied_head = true\n"
                        "[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\n"
                        "microbatch_size = 1\nsequence_length = 32\n[train]\nsteps = 2\n";
  const auto weights = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> arguments{RRFP_NODE, "run", one, "--json", folder / "o.jsonl"};
    for (const auto& s : settings) arguments.insert(arguments.end(), {"--set", s});
    const auto o = run_program(arguments);
    INFO(o.err);
    REQUIRE(o.code == 0);
    return lines_of(folder / "o.jsonl").back().at("weights_xxh64").get<std::string>();
  };
  const auto ten = weights({"pipeline.stages=1", "pipeline.microbatches=10"});
  CHECK(weights({"pipeline.stages=3", "pipeline.microbatches=10"}) == ten);
  CHECK(weights({"pipeline.stages=3", "pipeline.microbatches=10", "dispatch.policy=zb_h1",
                 "dispatch.mode=in-order"}) == ten);
  CHECK(weights({"pipeline.stages=3", "pipeline.microbatches=10", "dispatch.slots=1"}) == ten);
  CHECK(weights({"pipeline.stages=2", "pipeline.microbatches=10", "pipeline.cuts=[1, 2]"}) == ten);
  CHECK(weights({"pipeline.stages=2", "pipeline.microbatches=10", "pipeline.cuts=[2, 1]"}) == ten);
  CHECK(weights({"pipeline.stages=3", "pipeline.microbatches=1"}) ==
        weights({"pipeline.stages=1", "pipeline.microbatches=1"}));
}

TEST_CASE("the profile of a run with one layer per stage cuts a job by cost and speed") {
  const scratch_folder folder;
  const auto file = folder / "job.toml";
  std::ofstream{file} << "[pipeline]\nstages = 3\nmicrobatches = 4\n"
                         "[model]\nlayers = 6\nhidden = 32\ncontext = 32\n"
                         "[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\n"
                         "microbatch_size = 1\nsequence_length = 32\n[train]\nsteps = 2\n";
  const auto program = [&](std::vector<std::string> arguments) {
    const auto o = run_program(std::move(arguments));
    INFO(o.out << o.err);
    REQUIRE(o.code == 0);
    return o.out;
  };
  const auto trace = folder / "trace.json", profile = folder / "layers.toml";
  program({RRFP_NODE, "run", file, "--set", "pipeline.stages=6", "--set", "pipeline.microbatches=1",
           "--trace", trace});
  program({RRFP_REPORT, trace, "--profile", profile});

  // A device of four times the speed gets four times the layers.
  std::ofstream{folder / "even.toml"} << "[cost]\nforward_ms = [1, 1, 1, 1, 1, 1]\n"
                                         "backward_ms = [1, 1, 1, 1, 1, 1]\n"
                                         "weight_ms = [1, 1, 1, 1, 1, 1]\n";
  const auto planned =
      program({RRFP_NODE, "check", file, "--set", "cost.profile=" + (folder / "even.toml"), "--set",
               "pipeline.cuts=cost", "--set", "cost.speed=[1, 4, 1]"});
  CHECK_THAT(planned, Contains("    0  0-0         33.3 % ") &&
                          Contains("    1  1-4         33.3 % ") &&
                          Contains("    2  5-5         33.3 % ") && Contains("tasks, by [cost]"));
  CHECK(longest_line(planned) <= 80);

  const auto weights = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> arguments{RRFP_NODE, "run", file, "--json", folder / "o.jsonl"};
    for (const auto& s : settings) arguments.insert(arguments.end(), {"--set", s});
    program(std::move(arguments));
    return lines_of(folder / "o.jsonl").back().at("weights_xxh64").get<std::string>();
  };
  CHECK(weights({"cost.profile=" + profile, "pipeline.cuts=cost", "cost.speed=[1, 2, 4]"}) ==
        weights({}));
}

TEST_CASE("SIGINT ends the run within 2 s with code 130 and a valid trace") {
  const scratch_folder folder;
  program training{{RRFP_NODE, "run", quickstart, "--trace", folder / "trace.json", "--json",
                    folder / "out.jsonl", "--set", "run.progress=lines"}};
  for (int i = 0;
       i < 6000 && text_of(folder / "out.jsonl").find("\"step\":1,") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  training.signal(SIGINT);
  const auto o = training.wait();
  INFO(o.out << o.err);
  CHECK(o.code == 130);
  CHECK(o.seconds < 5 * slowdown);  // well below 2 s on a quiet machine
  CHECK_THAT(o.err, Contains("interrupted after "));
  CHECK(json::parse(std::ifstream{folder / "trace.json"}).at("traceEvents").size() > 100);
  CHECK(lines_of(folder / "out.jsonl").back().at("ending") == "interrupted");
}

TEST_CASE(
    "SIGINT at any moment of the start ends the run with code 130, and no trace is half-written") {
  const scratch_folder folder;
  const auto trace = folder / "trace.json";
  for (int ms : {0, 5, 20, 50, 100, 150, 200, 300, 400, 600}) {
    // Behind env, so that its start is one as users make it.
    program training{{"/usr/bin/env", RRFP_NODE, "run", quickstart, "--trace", trace}};
    std::this_thread::sleep_for(std::chrono::milliseconds{ms});
    training.signal(SIGINT);
    const auto o = training.wait();
    INFO("after " << ms << " ms: " << o.out << o.err);
    CHECK(o.code == 130);
    CHECK(o.seconds < 5 * slowdown);  // well below 2 s on a quiet machine
    if (std::filesystem::exists(trace)) CHECK(json::accept(std::ifstream{trace}));
    std::filesystem::remove(trace);
  }
}

TEST_CASE("a full disk is reported") {
  if (!std::filesystem::exists("/dev/full")) return;
  auto arguments = short_run;
  arguments.insert(arguments.end(), {"--set", "pipeline.microbatches=4", "--json", "/dev/full"});
  const auto o = run_program(arguments);
  CHECK(o.code == 1);
  CHECK_THAT(o.err, Contains("--json /dev/full") && Contains("No space left"));
}

TEST_CASE("check prints the plan in 80 columns and runs nothing") {
  const auto o = run_program({RRFP_NODE, "check", quickstart});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("4 stages x 1 chunks (linear)") && Contains("\n16 microbatches") &&
                        Contains("parameters") && Contains("predicted by simulation") &&
                        Contains("lower bound"));
  CHECK(longest_line(o.out) <= 80);
}

TEST_CASE("check predicts no time without [cost], and says so") {
  const scratch_folder folder;
  std::ofstream{folder / "job.toml"}
      << "[pipeline]\nstages = 4\n[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\n";
  const auto without = run_program({RRFP_NODE, "check", folder / "job.toml"});
  INFO(without.out << without.err);
  REQUIRE(without.code == 0);
  CHECK_THAT(without.out, Contains("step time: cannot be predicted") && Contains("bubble is ") &&
                              Contains("--profile") && !Contains("lower bound"));
  CHECK(longest_line(without.out) <= 80);
  const auto with =
      run_program({RRFP_NODE, "check", folder / "job.toml", "--set", "cost.forward_ms=2"});
  CHECK_THAT(with.out, Contains("predicted by simulation") && Contains("lower bound"));
}

TEST_CASE("check simulates no more tasks than its limit, and says so") {
  const auto checked = [](const std::string& microbatches, const std::string& stages) {
    const auto o =
        run_program({RRFP_NODE, "check", quickstart, "--set", "pipeline.stages=" + stages, "--set",
                     "pipeline.microbatches=" + microbatches});
    INFO(o.out << o.err);
    REQUIRE(o.code == 0);
    CHECK(longest_line(o.out) <= 80);
    return o.out;
  };
  CHECK_THAT(checked("16", "4"), Contains("mean of 10 steps"));
  CHECK_THAT(checked("30000", "4"), Contains("mean of 2 steps"));
  CHECK_THAT(checked("65536", "4"), Contains(", one step:"));
  CHECK_THAT(
      checked("65536", "8"),
      Contains("no prediction: a step has more tasks than the 1000000 that check simulates"));
}

TEST_CASE("the help of every program and command fits 80 columns") {
  for (const std::string program : {RRFP_NODE, RRFP_SIM, RRFP_REPORT, RRFP_JITTER, RRFP_SHAPES}) {
    const auto o = run_program({program, "--help"});
    INFO(o.out);
    CHECK(o.code == 0);
    CHECK(longest_line(o.out) <= 80);
  }
  for (const std::string command : {"run", "join", "check", "export", "init", "keys", "policies"}) {
    const auto o = run_program({RRFP_NODE, command, "--help"});
    INFO(o.out);
    CHECK(o.code == 0);
    CHECK(longest_line(o.out) <= 80);
  }
}

TEST_CASE("rrfp-node without arguments prints its help and ends with 2") {
  const auto o = run_program({RRFP_NODE});
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("Train the job on this machine") && Contains("Exit codes"));
}

TEST_CASE("keys and policies list the keys and policies of a job") {
  CHECK_THAT(run_program({RRFP_NODE, "keys"}).out,
             Contains("pipeline.stages") && Contains("jitter.level"));
  CHECK_THAT(run_program({RRFP_NODE, "policies"}).out, Contains("bfw") && Contains("dualpipe_v") &&
                                                           Contains("table:FILE.csv") &&
                                                           Contains("lib:FILE.so"));
}
