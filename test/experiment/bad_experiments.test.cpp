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
      {"steps = 1\n" + workload + run, "x.toml:1: steps: unknown key, did you mean train.steps?"},
      {workload + "pipeline.stagse = 4\n" + run,
       "x.toml:3: pipeline.stagse: unknown key, did you mean stages?"},
      {workload + "stages = 4\n" + run,
       "x.toml:3: stages: unknown key, did you mean pipeline.stages?"},
      {workload + "machine.tflop = 4\n" + run,
       "x.toml:3: machine.tflop: unknown key, did you mean tflops?"},
      {workload + "machne.tflops = 4\n" + run,
       "x.toml:3: machne: unknown section, did you mean machine?"},
      {workload + run + "dispatch.polcy = \"bf\"\n",
       "x.toml:5: dispatch.polcy: unknown key, did you mean policy?"},
      {workload + "paper.bfww = 2\n" + run, "x.toml:3: paper.bfww: unknown key, did you mean bfw?"},
      {workload + run + "[[weather]]\nname = \"n\"\njitter.stragler_factor = 2\n",
       "x.toml:7: jitter.stragler_factor: unknown key, did you mean straggler_factor?"},
      {workload + run + "[wether]\nname = \"n\"\n",
       "x.toml:5: wether: unknown section, did you mean weather?"},
      {workload + run + "[[wether]]\nname = \"n\"\n",
       "x.toml:5: wether: unknown key, did you mean weather?"},
      {workload + run + "[pipline]\nstages = 2\n",
       "x.toml:5: pipline: unknown section, did you mean pipeline?"},
  });
}

TEST_CASE("a value of the wrong type or out of range is reported with what was expected") {
  check({
      {workload + "pipeline.stages = \"four\"\n" + run,
       "x.toml:3: pipeline.stages: expected an integer >= 1, got a string \"four\""},
      {workload + "pipeline.stages = 0\n" + run,
       "x.toml:3: pipeline.stages: expected an integer >= 1, got 0"},
      {"pipeline.stages = 0\n" + workload + run,
       "x.toml:1: pipeline.stages: expected an integer >= 1, got 0"},
      {workload + "machine.efficiency = 1.5\n" + run,
       "x.toml:3: machine.efficiency: expected a number <= 1, got 1.5"},
      {workload + "machine = 3\n" + run, "x.toml:3: machine: expected a table, got an integer 3"},
      {workload + "paper = 3\n" + run, "x.toml:3: paper: expected a table, got an integer 3"},
      {"engine = \"gpu\"\n" + workload + run,
       "x.toml:1: engine: expected \"simulator\", \"wall-clock\", \"both\" or \"processes\", got "
       "\"gpu\""},
      {"device.time_scale = 0\n" + workload + run,
       "x.toml:1: device.time_scale: expected a number >= 0.001, got 0"},
      {workload + run + "jitter.link_mean_ms = []\n",
       "x.toml:5: jitter.link_mean_ms: expected a number in [0, 1000000], got an array []"},
      {workload + run + "hint = \"good\"\n",
       "x.toml:5: hint: expected \"own\", \"reversed\", \"shuffled\", \"calm\" or \"stale\", got "
       "\"good\""},
      {workload + run + "dispatch.mode = \"eager\"\n",
       "x.toml:5: dispatch.mode: expected \"in-order\" or \"ready\", got \"eager\""},
      {workload + run + "dispatch.mode = [\"ready\", \"eager\"]\n",
       "x.toml:5: dispatch.mode: expected \"in-order\" or \"ready\", got \"eager\""},
      {workload + run + "dispatch.mode = []\n",
       "x.toml:5: dispatch.mode: expected \"in-order\" or \"ready\", got an array []"},
      {workload + run + "dispatch.slots = \"many\"\n",
       "x.toml:5: dispatch.slots: expected \"auto\", \"none\", \"1f1b\", \"p\" or an integer >= 1, "
       "got a string \"many\""},
      {workload + run + "dispatch.slots = [4, 0]\n",
       "x.toml:5: dispatch.slots: expected an integer >= 1, got 0"},
      {"seeds = []\n" + workload + run, "x.toml:1: seeds: expected at least one, got none"},
      {"seeds = [1, 2, 1]\n" + workload + run,
       "x.toml:1: seeds: expected distinct seeds, got 1 twice"},
      {"train.steps = 0\n" + workload + run,
       "x.toml:1: train.steps: expected an integer >= 1, got 0"},
      {"train.steps = 100001\n" + workload + run,
       "x.toml:1: train.steps: expected at most 100000 steps, got 100001"},
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

TEST_CASE("conflicts between keys are found before anything runs, and the message names the cell") {
  const std::string in_cell = "; in workload \"w\", run \"r\", weather \"none\"";
  const std::string in_storm = "; in workload \"w\", run \"r\", weather \"n\"";
  check({
      {workload + "cost.preset = \"gpt4\"\n" + run,
       "x.toml:3: cost.preset: expected \"none\", \"gpt3-large\", \"qwen3-1.7b-vit-h\", "
       "\"qwen3-4b-vit-big\", \"llama3-8b-vit-5b\", \"qwen3-32b-internvit\", "
       "\"llama3-70b-vit-22b\", \"qwen3-1.7b-vit-l\", \"qwen3-1.7b-vit-g\", "
       "\"qwen3-1.7b-vit-big\", "
       "\"llama3-8b-internvit\", \"llama3-8b-vit-22b\", \"qwen3-30b-a3b\" or \"mixtral-8x7b\", got "
       "\"gpt4\""},
      {workload + "cost.preset = \"gpt3-large\"\npipeline.stages = 27\n" + run,
       "x.toml:4: pipeline.stages: expected at most as many stages as gpt3-large has parts, 26, "
       "got "
       "27" +
           in_cell},
      {workload + "cost.preset = \"qwen3-1.7b-vit-h\"\nimages.most = 5\n" + run,
       "x.toml:4: images.most: expected at most 4, because a sample has 1024 tokens and an image "
       "256, got 5" +
           in_cell},
      {workload + "cost.preset = \"qwen3-1.7b-vit-h\"\ncost.sequence_tokens = 512\n" + run,
       "x.toml:4: images.most: expected at most 2, because a sample has 512 tokens and an image "
       "256, got 4 (the default)" +
           in_cell},
      {workload + "pipeline.stages = 4\ncost.forward_ms = [1, 2]\n" + run,
       "x.toml:4: cost.forward_ms: expected one value or 4 (one per stage), got 2" + in_cell},
      {workload + run + "dispatch.messages = \"blocking\"\n",
       "x.toml:5: dispatch.messages: \"blocking\" expects dispatch.mode = \"in-order\", got "
       "\"ready\" (the default)" +
           in_cell},
      {workload + run + "dispatch.mode = \"in-order\"\nhint = \"shuffled\"\n",
       "x.toml:5: dispatch.mode: expected \"ready\" with hint \"shuffled\", got \"in-order\"" +
           in_cell},
      {workload + "pipeline.stages = 4\n" + run +
           "[[weather]]\nname = \"n\"\njitter.straggler_stage = 4\n"
           "jitter.straggler_factor = 2\n",
       "x.toml:8: jitter.straggler_stage: expected a stage below 4, got 4" + in_storm},
      {workload + "pipeline.stages = 4\n" + run +
           "[[weather]]\nname = \"n\"\njitter.slow_link_stage = 3\n"
           "jitter.slow_link_factor = 2\n",
       "x.toml:8: jitter.slow_link_stage: expected a stage below 3, got 3" + in_storm},
      {workload + run + "[[weather]]\nname = \"n\"\njitter.link = \"pareto\"\n",
       "x.toml:7: jitter.link_mean_ms: expected a number > 0 with jitter.link, got 0 (the "
       "default)" +
           in_storm},
  });
  CHECK(refusal(workload + run + "dispatch.policy = \"best\"\n")
            .starts_with("x.toml:5: dispatch.policy: expected one of bf, bfw"));
  CHECK(refusal(workload + run + "dispatch.policy = \"zb_v\"\n")
            .starts_with("x.toml:5: dispatch.policy: "));
  CHECK(refusal(workload + "pipeline.stages = 4\n" + run +
                "dispatch.mode = \"in-order\"\ndispatch.policy = \"gpipe\"\ndispatch.slots = 2\n")
            .starts_with("x.toml:8: dispatch.slots: "));
}

TEST_CASE("agreement by candidates is refused where the stage does not choose alone") {
  const auto head = workload + run + "agreement = \"candidates\"\n";
  const auto refused = [](const std::string& expected) {
    return "x.toml: run \"r\": agreement: \"candidates\" expects " + expected +
           "; in workload \"w\", run \"r\", weather \"none\"";
  };
  check(
      {{head, "accepted"},
       {"engine = \"wall-clock\"\n" + head, refused("engine = \"simulator\", got \"wall clock\"")},
       {head + "dispatch.mode = \"in-order\"\n",
        refused("dispatch.mode = \"ready\", got \"in-order\"")},
       {head + "dispatch.lookahead = 1\n", refused("dispatch.lookahead = 0, got 1")},
       {head + "dispatch.early_forwards = 2\n", refused("dispatch.early_forwards = 0, got 2")}});
}

TEST_CASE("what holds for all cells is refused in a table, and keys without effect everywhere") {
  check({
      {workload + run + "train.steps = 2\n",
       "x.toml:5: train.steps: expected before the first table, because it applies to all cells"},
      {workload + "device.time_scale = 2\n" + run,
       "x.toml:3: device.time_scale: expected before the first table, because it applies to all "
       "cells"},
      {workload + run + "jitter.seed = 2\n",
       "x.toml:5: jitter.seed: expected `seeds`, which sets it for all cells"},
      {"jitter.seed = 2\n" + workload + run,
       "x.toml:1: jitter.seed: expected `seeds`, which sets it for all cells"},
      {workload + "model.layers = 2\n" + run,
       "x.toml:3: model.layers: has no effect in an experiment"},
      {"train.lr = 2\n" + workload + run, "x.toml:1: train.lr: has no effect in an experiment"},
  });
}

TEST_CASE("errors in the job file of an experiment name it") {
  const auto with = [](const std::string& text) {
    const scratch_file f{text};
    auto said = refusal("job = \"" + f.path() + "\"\n" + workload + run);
    for (auto at = said.find(f.path()); at != std::string::npos; at = said.find(f.path()))
      said.replace(at, f.path().size(), "J");
    return said;
  };
  CHECK(with("[pipeline]\nstages = 4\n") == "accepted");
  CHECK(with("[pipeline]\nstages = 0\n") ==
        "J:2: pipeline.stages: expected an integer >= 1, got 0");
  CHECK(with("[[compare]]\nname = \"a\"\n") ==
        "x.toml:1: job: J: expected a job without [[compare]]");
  CHECK(refusal("job = \"/nonexistent/j.toml\"\n" + workload + run) ==
        "/nonexistent/j.toml: cannot be read: No such file or directory");
}

TEST_CASE("a profile excludes a preset, and errors in it name its file") {
  const scratch_file fits{"[cost]\nforward_ms = 2\n"};
  const auto with = [](const scratch_file& f, const std::string& more = "") {
    return refusal(workload + "cost.profile = \"" + f.path() + "\"\n" + more + run);
  };
  CHECK(with(fits) == "accepted");
  CHECK(
      with(fits, "cost.preset = \"gpt3-large\"\n") ==
      "x.toml:3: cost.forward_ms: cannot be set together with cost.preset, which gives the times; "
      "in workload \"w\", run \"r\", weather \"none\"");
  CHECK(with(fits, "cost.link_ms = 1\n") == "accepted");
  CHECK(with(fits, "pipeline.stages = 3\n") == "accepted");

  const auto fault = [&](const std::string& text) {
    const scratch_file f{text};
    auto said = with(f, "pipeline.stages = 4\n");
    for (auto at = said.find(f.path()); at != std::string::npos; at = said.find(f.path()))
      said.replace(at, f.path().size(), "P");
    return said;
  };
  const std::string at = "x.toml:3: cost.profile: ";
  CHECK(fault("[cost]\n\nweight_ms = [1, 2, 3]\n") ==
        "x.toml:3: cost.weight_ms: expected one value or 4 (one per stage), got 3; in workload "
        "\"w\", run \"r\", weather \"none\"");
  CHECK(fault("[cost]\nforwrd_ms = 1\n") ==
        at + "P:2: cost.forwrd_ms: unknown key, did you mean forward_ms?");
  CHECK(fault("[cost]\nforward_ms = -1\n") ==
        at + "P:2: cost.forward_ms: expected a number >= 0, got -1");
  CHECK(fault("cost = 3\n") == at + "P:1: cost: expected a table, got an integer 3");
  CHECK(fault("[pipeline]\nstages = 4\n") ==
        at + "P:1: pipeline: expected only the times of [cost] in a profile");
  CHECK(fault("[cost]\nprofile = \"P\"\n") ==
        at + "P:2: cost.profile: expected only the times of [cost] in a profile");
  CHECK(fault("# nothing\n") == at + "P: expected at least one key of [cost], got none");
  CHECK(fault("[cost\n").starts_with(at + "P:1:6: "));
  CHECK(refusal(workload + "cost.profile = \"/nonexistent/p.toml\"\n" + run) ==
        at + "/nonexistent/p.toml: cannot be read: No such file or directory");
}

TEST_CASE("a key without effect is refused with what it needs") {
  const std::string preset = "cost.preset = \"gpt3-large\"\n";
  const std::string in_cell = "; in workload \"w\", run \"r\", weather \"none\"";
  check({
      {workload + preset + "cost.forward_ms = 500\n" + run,
       "x.toml:4: cost.forward_ms: cannot be set together with cost.preset, which gives the times" +
           in_cell},
      {workload + "machine.tflops = 10\n" + run,
       "x.toml:3: machine.tflops: needs cost.preset, which it modifies" + in_cell},
      {workload + "images.mean = 1\n" + run,
       "x.toml:3: images.mean: needs cost.preset, which it modifies" + in_cell},
      {workload + run + "dispatch.slot_bytes = \"1B\"\n",
       "x.toml:5: dispatch.slot_bytes: expected cost.preset, which determines the bytes of a "
       "microbatch" +
           in_cell},
      {workload + run + "[[weather]]\nname = \"n\"\njitter.compute_sigma = 2\n",
       "x.toml:7: jitter.compute_sigma: expected jitter.compute as well: without it the key has no "
       "effect"},
      {workload + run + "[[weather]]\nname = \"n\"\njitter.straggler_stage = 1\n",
       "x.toml:7: jitter.straggler_stage: expected jitter.straggler_factor as well: without it the "
       "key has no effect"},
      {workload + "pipeline.stages = 1\n" + run +
           "[[weather]]\nname = \"n\"\njitter.slow_link_factor = 2\n",
       "x.toml:8: jitter.slow_link_factor: expected at least two stages, got 1; in workload \"w\", "
       "run \"r\", weather \"n\""},
      {workload + "cost = {forward_ms = 0, backward_ms = 0, weight_ms = 0}\n" + run,
       "x.toml:3: cost.forward_ms: expected a time above 0 for at least one task, got 0 for all" +
           in_cell},
  });
}

TEST_CASE("sizes that are too large, and ranks that do not divide the heads, are refused") {
  const std::string in_cell = "; in workload \"w\", run \"r\", weather \"none\"";
  check({
      {workload + "pipeline.stages = 1024\npipeline.microbatches = 65536\n" + run,
       "x.toml:4: pipeline.microbatches: expected stages * chunks * microbatches <= 4194304, got "
       "67108864" +
           in_cell},
      {workload + "pipeline.stages = 64\npipeline.tp = 64\npipeline.replicas = 1024\n" + run,
       "x.toml:3: pipeline.stages: expected stages * tp * replicas <= 4096, got 4194304" + in_cell},
      {workload + "cost.preset = \"gpt3-large\"\npipeline.tp = 3\n" + run,
       "x.toml:4: pipeline.tp: expected a divisor of the 16 heads of \"gpt3-large\", got 3" +
           in_cell},
      {workload + "cost.preset = \"gpt3-large\"\npipeline.chunks = 2\n" + run,
       "x.toml:4: pipeline.chunks: expected 1 with cost.preset, got 2" + in_cell},
  });
}

TEST_CASE(
    "the table of a policy is found relative to the experiment, and its errors are reported") {
  const auto made = parse_experiment(workload + run + "dispatch.policy = \"table:none.csv\"\n",
                                     "/nonexistent/x.toml");
  REQUIRE_FALSE(made);
  CHECK(made.message().starts_with(
      "/nonexistent/x.toml:5: dispatch.policy: /nonexistent/none.csv: "));
}

TEST_CASE("too many cells are refused") {
  std::string seeds = "seeds = [0";
  for (int i = 1; i < 1000; ++i) seeds += ", " + std::to_string(i);
  std::string ahead = "dispatch.run_ahead = [0";
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
