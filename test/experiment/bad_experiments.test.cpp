/// Errors that a user can make in an experiment file, and the message for each.
#include <catch2/catch.hpp>

#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

namespace {

struct wrong {
  std::string text;
  std::string said;
};

const std::string workload = "[[workload]]\nname = \"w\"\n";  // lines 1 and 2
const std::string run = "[[run]]\nname = \"r\"\n";            // lines 3 and 4

void check(const std::vector<wrong>& cases) {
  for (const auto& c : cases) {
    INFO(c.text);
    CHECK(refusal(c.text) == c.said);
  }
}

}  // namespace

TEST_CASE("an unknown key is reported with the closest known key") {
  check({
      {"sedes = [1]\n" + workload + run, "x.toml:1: sedes: unknown key, did you mean seeds?"},
      {workload + "stagse = 4\n" + run, "x.toml:3: stagse: unknown key, did you mean stages?"},
      {workload + "machine.tflop = 4\n" + run,
       "x.toml:3: machine.tflop: unknown key, did you mean tflops?"},
      {workload + "machne.tflops = 4\n" + run,
       "x.toml:3: machne: unknown section, did you mean machine?"},
      {workload + run + "polcy = \"bf\"\n", "x.toml:5: polcy: unknown key, did you mean policy?"},
      {workload + run + "[[weather]]\nname = \"n\"\nstragler_factor = 2\n",
       "x.toml:7: stragler_factor: unknown key, did you mean straggler_factor?"},
      {workload + run + "[wether]\nname = \"n\"\n",
       "x.toml:5: wether: unknown section, did you mean weather?"},
      {workload + run + "[[wether]]\nname = \"n\"\n",
       "x.toml:5: wether: unknown key, did you mean weather?"},
      {workload + run + "polcy.name = \"bf\"\n",
       "x.toml:5: polcy: unknown key, did you mean policy?"},
  });
}

TEST_CASE("a value of the wrong type or out of range is reported with what was expected") {
  check({
      {workload + "stages = \"four\"\n" + run,
       "x.toml:3: stages: expected an integer >= 1, got a string \"four\""},
      {workload + "stages = 0\n" + run, "x.toml:3: stages: expected an integer >= 1, got 0"},
      {workload + "machine.efficiency = 1.5\n" + run,
       "x.toml:3: machine.efficiency: expected a number <= 1, got 1.5"},
      {workload + "machine = 3\n" + run, "x.toml:3: machine: expected a table, got an integer 3"},
      {"engine = \"gpu\"\n" + workload + run,
       "x.toml:1: engine: expected \"simulator\", \"wall-clock\" or \"both\", got \"gpu\""},
      {"time_scale = 0\n" + workload + run,
       "x.toml:1: time_scale: expected a number >= 0.001, got 0"},
      {workload + run + "notice_ms = []\n",
       "x.toml:5: notice_ms: expected a number or an array of at least one, got []"},
      {workload + run + "hint = \"good\"\n",
       "x.toml:5: hint: expected \"own\", \"reversed\", \"shuffled\", \"calm\" or \"stale\", got "
       "\"good\""},
      {workload + run + "mode = \"in-order\"\nhint = \"shuffled\"\n",
       "x.toml:6: hint: expected \"own\", \"calm\" or \"stale\" in mode \"in-order\", got "
       "\"shuffled\""},
      {workload + run + "mode = \"eager\"\n",
       "x.toml:5: mode: expected \"blocking\", \"in-order\" or \"ready\", got \"eager\""},
      {workload + run + "mode = [\"ready\", \"eager\"]\n",
       "x.toml:5: mode: entry 1: expected \"blocking\", \"in-order\" or \"ready\", got \"eager\""},
      {workload + run + "mode = []\n", "x.toml:5: mode: expected at least one value, got []"},
      {workload + run + "slots = \"many\"\n",
       "x.toml:5: slots: expected \"auto\", \"none\", \"1f1b\", \"p\" or an integer >= 1, got a "
       "string "
       "\"many\""},
      {workload + run + "slots = [4, 0]\n",
       "x.toml:5: slots: entry 1: expected an integer >= 1, got 0"},
      {workload + run + "run_ahead = []\n", "x.toml:5: run_ahead: expected at least one value"},
      {"seeds = []\n" + workload + run, "x.toml:1: seeds: expected at least one, got none"},
      {"seeds = [1, 2, 1]\n" + workload + run,
       "x.toml:1: seeds: expected distinct seeds, got 1 twice"},
      {"steps = 0\n" + workload + run, "x.toml:1: steps: expected an integer >= 1, got 0"},
      {"[workload\n", "x.toml:1:10: Error while parsing table header: expected ']', saw '\\n'"},
  });
}

TEST_CASE(
    "an experiment without a workload or run is refused, and so are missing and duplicate names") {
  check({
      {"", "x.toml: workload: expected at least one [[workload]], got none"},
      {workload, "x.toml: run: expected at least one [[run]], got none"},
      {"workload = 3\n" + run,
       "x.toml:1: workload: expected [[workload]] tables, got an integer 3"},
      {"[workload]\nname = \"w\"\n",
       "x.toml:1: workload: expected [[workload]] tables, got a table"},
      {"[[workload]]\n" + run, "x.toml:1: workload: expected a name, got none"},
      {workload + workload + run, "x.toml:3: workload: expected distinct names, got \"w\" twice"},
      {workload + run + run, "x.toml:5: run: expected distinct names, got \"r\" twice"},
      {workload + run + "[[weather]]\n", "x.toml:5: weather: expected a name, got none"},
      {"baseline = \"q\"\n" + workload + run,
       "x.toml:1: baseline: expected the name of a run, got \"q\", did you mean r?"},
      {"ablation = [\"r\", \"rr\"]\n" + workload + run,
       "x.toml:1: ablation: expected the name of a run, got \"rr\", did you mean r?"},
  });
}

TEST_CASE("conflicts between keys are found before anything runs") {
  check({
      {workload + "preset = \"gpt4\"\n" + run,
       "x.toml:3: preset: expected a known workload, got \"gpt4\"; there are gpt3-large, "
       "qwen3-1.7b-vit-h, qwen3-4b-vit-big, llama3-8b-vit-5b, qwen3-32b-internvit, "
       "llama3-70b-vit-22b"},
      {workload + "preset = \"gpt3-large\"\nstages = 27\n" + run,
       "x.toml:4: stages: expected at most as many stages as gpt3-large has parts, 26, got 27"},
      {workload + "preset = \"qwen3-1.7b-vit-h\"\nimages.most = 5\n" + run,
       "x.toml:4: images.most: expected at most 4, because a sample has 1024 tokens and an image "
       "256, "
       "got 5"},
      {workload + "preset = \"qwen3-1.7b-vit-h\"\nsequence_tokens = 512\n" + run,
       "x.toml:4: images.most: expected at most 2, because a sample has 512 tokens and an image "
       "256, "
       "got 4 (the default)"},
      {workload + "cost.forward_ms = [1, 2]\n" + run,
       "x.toml:3: cost.forward_ms: expected one value or 4 (one per stage), got 2"},
      {workload + run + "mode = \"blocking\"\n",
       "x.toml:5: policy: expected a fixed schedule in mode \"blocking\", got \"bfw\", which has "
       "none"},
      {workload + run + "[[weather]]\nname = \"n\"\nstraggler_stage = 4\nstraggler_factor = 2\n",
       "x.toml:7: straggler_stage: workload \"w\": expected a stage below 4, got 4"},
      {workload + run + "[[weather]]\nname = \"n\"\nslow_link_stage = 3\nslow_link_factor = 2\n",
       "x.toml:7: slow_link_stage: workload \"w\": expected a stage below 3, got 3"},
      {workload + run + "[[weather]]\nname = \"n\"\nlink = \"pareto\"\n",
       "x.toml:7: link_mean_ms: expected a number > 0 with link, got 0 (the default)"},
  });
  CHECK(refusal(workload + run + "policy = \"best\"\n")
            .starts_with("x.toml:5: policy: workload \"w\": policy: expected one of bf, bfw"));
  CHECK(refusal(workload + run + "policy = \"zb_v\"\n").starts_with("x.toml:5: policy: workload"));
  CHECK(refusal(workload + run + "mode = \"in-order\"\npolicy = \"gpipe\"\nslots = 2\n")
            .starts_with("x.toml:7: slots: workload \"w\": "));
}

TEST_CASE(
    "a profile is refused together with the keys that it replaces, and errors in it name its "
    "file") {
  const scratch_file fits{"[cost]\nforward_ms = 2\n"};
  const auto with = [](const scratch_file& f, const std::string& more = "") {
    return refusal(workload + "profile = \"" + f.path() + "\"\n" + more + run);
  };
  CHECK(with(fits) == "accepted");
  CHECK(with(fits, "preset = \"gpt3-large\"\n") ==
        "x.toml:4: preset: cannot be set together with profile");
  CHECK(with(fits, "cost.link_ms = 1\n") ==
        "x.toml:4: cost.link_ms: cannot be set together with profile, which sets it");
  CHECK(with(fits, "stages = 3\n") == "accepted");

  const auto fault = [&](const std::string& text) {
    const scratch_file f{text};
    auto said = with(f);
    for (auto at = said.find(f.path()); at != std::string::npos; at = said.find(f.path()))
      said.replace(at, f.path().size(), "P");
    return said;
  };
  CHECK(fault("[cost]\n\nweight_ms = [1, 2, 3]\n") ==
        "P:3: cost.weight_ms: expected one value or 4 (one per stage), got 3");
  CHECK(fault("[cost]\nforwrd_ms = 1\n") ==
        "P:2: cost.forwrd_ms: unknown key, did you mean forward_ms?");
  CHECK(fault("[cost]\nforward_ms = -1\n") ==
        "P:2: cost.forward_ms: expected a number >= 0, got -1");
  CHECK(fault("cost = 3\n") == "P:1: cost: expected a table, got an integer 3");
  CHECK(fault("[pipeline]\nstages = 4\n") ==
        "P:1: pipeline: expected only [cost] in the profile of a workload");
  CHECK(fault("# nothing\n") ==
        "x.toml:3: profile: P: expected at least one key of [cost], got none");
  CHECK(fault("[cost\n").starts_with("P:1:6: "));
  CHECK(refusal(workload + "profile = \"/nonexistent/p.toml\"\n" + run) ==
        "x.toml:3: profile: /nonexistent/p.toml: cannot be read: No such file or directory");
}

TEST_CASE("a key without effect is refused with what it needs") {
  const std::string preset = "preset = \"gpt3-large\"\n";
  check({
      {workload + preset + "cost.forward_ms = 500\n" + run,
       "x.toml:4: cost.forward_ms: cannot be set together with preset, which gives the times"},
      {workload + "machine.tflops = 10\n" + run,
       "x.toml:3: machine.tflops: needs a preset, which it modifies"},
      {workload + "images.mean = 1\n" + run,
       "x.toml:3: images.mean: needs a preset, which it modifies"},
      {workload + run + "slot_bytes = \"1B\"\n",
       "x.toml:5: slot_bytes: workload \"w\": expected a preset, which determines the bytes of a "
       "microbatch"},
      {workload + run + "[[weather]]\nname = \"n\"\ncompute_sigma = 2\n",
       "x.toml:7: compute_sigma: expected compute as well: without it the key has no effect"},
      {workload + run + "[[weather]]\nname = \"n\"\nstraggler_stage = 1\n",
       "x.toml:7: straggler_stage: expected straggler_factor as well: without it the key has no "
       "effect"},
      {workload + "stages = 1\n" + run + "[[weather]]\nname = \"n\"\nslow_link_factor = 2\n",
       "x.toml:8: slow_link_factor: workload \"w\": needs at least two stages"},
      {workload + "cost = {forward_ms = 0, backward_ms = 0, weight_ms = 0}\n" + run,
       "x.toml:3: cost.forward_ms: expected a time above 0 for at least one task, got 0 for all"},
  });
}

TEST_CASE("sizes that are too large, and ranks that do not divide the heads, are refused") {
  check({
      {workload + "stages = 1024\nmicrobatches = 65536\n" + run,
       "x.toml:4: microbatches: expected stages * microbatches <= 1048576, got 67108864"},
      {workload + "stages = 64\ntp = 64\nreplicas = 1024\n" + run,
       "x.toml:3: stages: expected stages * tp * replicas <= 4096, got 4194304"},
      {workload + "preset = \"gpt3-large\"\ntp = 3\n" + run,
       "x.toml:4: tp: expected a divisor of the 16 heads of \"gpt3-large\", got 3"},
  });
}

TEST_CASE(
    "the table of a policy is found relative to the experiment, and its errors are reported") {
  const auto made =
      parse_experiment(workload + run + "policy = \"table:none.csv\"\n", "/nonexistent/x.toml");
  REQUIRE_FALSE(made);
  CHECK(made.message() ==
        "/nonexistent/x.toml:5: policy: /nonexistent/none.csv: cannot be read: No such file or "
        "directory");
}

TEST_CASE("too many cells are refused") {
  std::string seeds = "seeds = [0";
  for (int i = 1; i < 1000; ++i) seeds += ", " + std::to_string(i);
  std::string ahead = "run_ahead = [0";
  for (int i = 1; i <= 100; ++i) ahead += ", " + std::to_string(i);
  CHECK(refusal(seeds + "]\n" + workload + run + ahead + "]\n") ==
        "x.toml:1: seeds: expected workloads * weathers * runs * seeds <= 100000, got 101000");
}

TEST_CASE("a file that cannot be read is named with the reason") {
  const auto made = load_experiment("/nonexistent/x.toml");
  REQUIRE_FALSE(made);
  CHECK(made.message() == "/nonexistent/x.toml: cannot be read: No such file or directory");
}

}  // namespace rrfp::experiment
