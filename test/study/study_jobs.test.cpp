/// Jobs with the keys of a study.
#include <algorithm>

#include <catch2/catch.hpp>

#include <rrfp/policies/registry.hpp>
#include <rrfp/study/options.hpp>
#include <rrfp/study/pipeline_cost.hpp>

#include <rrfp/study/keys.hpp>
#include "../job/job_texts.hpp"

namespace rrfp::study {

namespace {

using testing::scratch_folder;
using testing::texts;

std::string refusal(const std::string& text, const texts& settings = {}) {
  return testing::refusal(text, settings, job::job_use::simulate, schema());
}

job::job good(const std::string& text) {
  return testing::good(text, {}, job::job_use::simulate, schema());
}

TEST_CASE("A preset, its machine and its images are read, and change the job") {
  const auto j = good(
      "[pipeline]\nstages = 4\n[cost]\npreset = \"qwen3-1.7b-vit-h\"\nsamples = 2\n"
      "shape_messages = true\nspeed = [1, 1, 0.5, 1]\n"
      "[machine]\ntflops = 300\n[images]\nspread = \"fixed\"\nmean = 1\n");
  CHECK(options_of(j).cost.preset == "qwen3-1.7b-vit-h");
  CHECK(j.cost.speed == std::vector<double>{1, 1, 0.5, 1});
  CHECK(options_of(j).cost.shape_messages);
  CHECK(options_of(j).machine.tflops == 300);
  CHECK(options_of(j).images.spread == image_spread::fixed);
  std::vector<std::string> keys;
  for (const auto& s : job::changes(j)) keys.push_back(s.key);
  CHECK(keys == texts{"pipeline.stages", "cost.speed", "cost.preset", "cost.samples",
                      "cost.shape_messages", "machine.tflops", "images.spread", "images.mean"});
  CHECK(good(job::to_toml(j)) == j);
  CHECK(options_of(good("[cost]\npreset = \"none\"\n")).cost.preset.empty());
}

TEST_CASE("Every key of a machine changes the times of a preset") {
  const auto of = [](const std::string& machine) {
    return *workload_of(good("[pipeline]\nstages = 2\n[cost]\npreset = \"gpt3-large\"\n"
                             "[machine]\n" +
                             machine))
                .value();
  };
  const workload::load one{};
  const auto bytes = of("").message_bytes(stage_id{0}, one);
  CHECK(of("within_us = 3").empty_message_ms(stage_id{0}) == Approx(0.003));
  CHECK(of("within_us = 0\nwithin_gb_s = 2").message_ms(stage_id{0}, one) == Approx(bytes / 2e6));
  CHECK(of("group = 1\nbetween_us = 7").empty_message_ms(stage_id{0}) == Approx(0.007));
  CHECK(of("group = 1\nbetween_us = 0\nbetween_gb_s = 4").message_ms(stage_id{0}, one) ==
        Approx(bytes / 4e6));
  const auto forward_ms = [&](const std::string& machine) {
    return of(machine).stage(stage_id{0}, one).forward_ms;
  };
  const auto usual = forward_ms("");
  CHECK(forward_ms("tflops = 30") > usual);
  CHECK(forward_ms("memory_gb_s = 1") > usual);
  CHECK(forward_ms("efficiency = 0.1") > usual);
  CHECK(forward_ms("layer_us = 10") > usual);
}

TEST_CASE("The histogram of a job is read with it") {
  const scratch_folder folder;
  folder.write("h.csv", "tokens,count\n100,3\n400,1\n");
  const auto path =
      folder.write("x.toml",
                   "[cost]\npreset = \"mixtral-8x7b\"\n[texts]\nspread = \"histogram\"\n"
                   "histogram = \"h.csv\"\n");
  const auto j = job::load_job(path, policies::registry(), {}, job::job_use::simulate, schema());
  if (!j) FAIL(j.message());
  CHECK(options_of(*j).texts.histogram == folder.at("h.csv"));
  CHECK(mean_text(options_of(*j).texts) == 175);
  CHECK(workload_of(*j).value()->arrangement().mean_tokens == 175);
}

TEST_CASE("The cut of a preset follows pipeline.cuts and the speeds") {
  const auto cuts = [](const std::string& of_pipeline, const std::string& speed) {
    return workload_of(good("[pipeline]\nstages = 2\n" + of_pipeline +
                            "[cost]\npreset = \"gpt3-large\"\nspeed = " + speed))
        .value()
        ->cuts();
  };
  using list = std::vector<std::uint32_t>;
  const auto even = cuts("", "1");
  CHECK(even == cuts("cuts = \"cost\"\n", "3"));
  CHECK(cuts("cuts = \"layers\"\n", "[1, 9]") == list{0, 13, 26});
  CHECK(cuts("cuts = [1, 23]\n", "1") == list{0, 2, 26});
  CHECK(cuts("", "[1, 9]")[1] < even[1]);
  CHECK(cuts("", "[9, 1]")[1] > even[1]);
}

TEST_CASE("Blocking messages need a sequence, and nothing queued") {
  const std::string job = "[dispatch]\nmessages = \"blocking\"\n";
  CHECK(refusal(job) ==
        "x.toml:2: dispatch.messages: \"blocking\" expects dispatch.mode = \"in-order\", got "
        "\"ready\" (the default)");
  CHECK(refusal(job + "mode = \"in-order\"\nlookahead = 1\n") ==
        "x.toml:4: dispatch.lookahead: expected 0 with dispatch.messages = \"blocking\", got 1");
  CHECK(refusal(job + "mode = \"in-order\"\n") == "accepted");
}

TEST_CASE("A preset excludes times, and what modifies it needs one") {
  const std::string preset = "[cost]\npreset = \"gpt3-large\"\n";
  CHECK(refusal(preset) == "accepted");
  CHECK(refusal(preset + "forward_ms = 1.0\n") == "accepted");  // the default
  CHECK(refusal(preset + "weight_ms = 2\n") ==
        "x.toml:3: cost.weight_ms: cannot be set together with cost.preset, which gives the times");
  CHECK(refusal("[machine]\ngroup = 4\n") ==
        "x.toml:2: machine.group: needs cost.preset, which it modifies");
  CHECK(refusal("[experts]\nspread = \"even\"\n") ==
        "x.toml:2: experts.spread: needs cost.preset, which it modifies");
  CHECK(refusal("[texts]\nmean = 7\n") ==
        "x.toml:2: texts.mean: needs cost.preset, which it modifies");
  CHECK(refusal("[cost]\nshape_messages = true\n") ==
        "x.toml:2: cost.shape_messages: needs cost.preset, which it modifies");
  CHECK(
      refusal(preset + "[pipeline]\ncuts = \"layers\"\n", {"pipeline.stages=25"}) ==
      "--set pipeline.stages=25: expected at most as many stages as gpt3-large has layers, 24, got "
      "25");
  CHECK(
      refusal(preset, {"pipeline.stages=27"}) ==
      "--set pipeline.stages=27: expected at most as many stages as gpt3-large has parts, 26, got "
      "27");
  CHECK(refusal(preset, {"pipeline.stages=2", "pipeline.cuts=[1, 24]"}) ==
        "--set pipeline.cuts=[1, 24]: expected all 24 layers of gpt3-large, got 25");
  const std::string mixture = "[cost]\npreset = \"mixtral-8x7b\"\n";
  CHECK(refusal(mixture, {"pipeline.tp=8"}) == "accepted");
  CHECK(refusal(mixture, {"pipeline.tp=16"}) ==
        "--set pipeline.tp=16: expected a divisor of the 32 heads and the 8 experts of "
        "\"mixtral-8x7b\", got 16");
}

TEST_CASE("Texts that do not fit the preset are refused") {
  const auto with = [](const std::string& preset, const std::string& keys,
                       const texts& settings = {}) {
    return refusal("[cost]\npreset = \"" + preset + "\"\n[texts]\n" + keys, settings);
  };
  CHECK(with("mixtral-8x7b", "spread = \"uniform\"\n") == "accepted");
  CHECK(with("gpt3-large", "spread = \"uniform\"\n", {"texts.most=2048"}) == "accepted");
  CHECK(with("gpt3-large", "spread = \"uniform\"\nmost = 2049\n") ==
        "x.toml:5: texts.most: expected at most the 2048 positions of \"gpt3-large\", got 2049");
  CHECK(with("mixtral-8x7b", "spread = \"uniform\"\n", {"cost.sequence_tokens=100"}) ==
        "--set cost.sequence_tokens=100: expected 0 with texts.spread = \"uniform\", got 100");
  CHECK(with("mixtral-8x7b", "spread = \"histogram\"\n") ==
        "x.toml:4: texts.histogram: expected a file with texts.spread = "
        "\"histogram\", got none");
  const scratch_folder folder;
  const auto file = folder.write("h.csv", "tokens,count\n7,x\n");
  CHECK(with("mixtral-8x7b", "histogram = \"" + file + "\"\n") ==
        "x.toml:4: texts.histogram: " + file +
            ":2: expected tokens from 1 to 1048576 and a count up to 1000000000000, got \"7,x\"");
  folder.write("h.csv", "tokens,count\n7,1\n");
  CHECK(with("mixtral-8x7b", "histogram = \"" + file + "\"\n") ==
        "x.toml:4: texts.histogram: needs texts.spread = \"histogram\", got \"padded\"");
}

TEST_CASE("Back-pressure is refused with any other limit of forwards") {
  const std::string job = "[pipeline]\nstages = 4\n[dispatch]\nrun_ahead = 3\n";
  const auto refused = [](const std::string& with) {
    return "x.toml:4: dispatch.run_ahead: expected 0 " + with + ", got 3";
  };
  CHECK(refusal(job) == "accepted");
  CHECK(refusal(job + "slots = \"none\"") == "accepted");
  CHECK(refusal(job + "slots = 5") == refused("with dispatch.slots"));
  CHECK(refusal(job + "slots = \"1f1b\"") == refused("with dispatch.slots"));
  CHECK(refusal(job + "slot_bytes = \"1MiB\"") == refused("with dispatch.slot_bytes"));
  CHECK(refusal(job + "early_forwards = 1") == refused("with dispatch.early_forwards"));
  CHECK(refusal(job + "mode = \"in-order\"") == refused("in mode in-order"));
}

TEST_CASE("Replicas that run each other's microbatches need messages that do not block") {
  const std::string blocking =
      "[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n"
      "messages = \"blocking\"\n";
  const std::string expected = " expects dispatch.messages = \"asynchronous\", got \"blocking\"";
  CHECK(refusal("[pipeline]\nshares = \"measured\"\nreplicas = 2\n" + blocking) ==
        "x.toml:2: pipeline.shares: \"measured\"" + expected);
  CHECK(refusal("[recovery]\nmax_restarts = 1\nwithout_replacement = \"reroute\"\n"
                "[pipeline]\nreplicas = 2\n" +
                blocking) == "x.toml:3: recovery.without_replacement: \"reroute\"" + expected);
}

TEST_CASE("A paused stage and a slow link must exist") {
  const std::string stages = "[pipeline]\nstages = 2\n[jitter]\n";
  CHECK(refusal(stages + "pause_ms = 5\npause_stage = 1\n") == "accepted");
  CHECK(refusal(stages + "pause_ms = 5\npause_stage = 2\n") ==
        "x.toml:5: jitter.pause_stage: expected a stage below 2, got 2");
  CHECK(refusal(stages + "slow_link_factor = 3\nslow_link_stage = 1\n") ==
        "x.toml:5: jitter.slow_link_stage: expected a stage below 1, got 1");
  CHECK(refusal("[jitter]\nslow_link_factor = 3\n") ==
        "x.toml:2: jitter.slow_link_factor: expected at least two stages, got 1");
}

TEST_CASE("Back-pressure takes the place of slots") {
  const auto slots = [](const std::string& keys) {
    return effective_limit(good("[dispatch]\n" + keys), stage_id{0});
  };
  CHECK(slots("run_ahead = 9\n").slots == 0);
  CHECK(slots("run_ahead = 9\n").run_ahead == 9);
  CHECK(slots("").slots == 2);
  CHECK(slots("").run_ahead == 0);
}

TEST_CASE("A preset divides its own layers, not those of the model") {
  const auto j = good(
      "[pipeline]\nstages = 3\ncuts = [8, 8, 8]\n[model]\nlayers = 7\n"
      "[cost]\npreset = \"gpt3-large\"\n");
  CHECK(job::layers_of_parts(j) == std::vector<std::uint32_t>{3, 2, 2});
}

TEST_CASE("The runtime knows no key of a study") {
  for (const auto& k : schema().keys()) {
    CAPTURE(k.path);
    const bool is_added = job::runtime_schema().find(k.path) == nullptr;
    std::vector<std::string> added;
    for (const auto& own : keys()) added.push_back(own.path);
    CHECK(is_added == (std::find(added.begin(), added.end(), k.path) != added.end()));
  }
  const auto refused = job::parse_job("[cost]\npreset = \"gpt3-large\"\n", "x.toml",
                                      policies::registry(), {}, job::job_use::simulate);
  CHECK_THAT(refused.message(), Catch::StartsWith("x.toml:2: cost.preset: unknown key"));
}

TEST_CASE("The dump of a job of a study is parsed to the same job") {
  const auto j = good(
      "[dispatch]\nrun_ahead = 3\n[jitter]\npause_ms = 2\n[cost]\npreset = \"mixtral-8x7b\"\n"
      "[experts]\nconcentration = 3\n[[compare]]\nname = \"a\"\nmachine.group = 4\n");
  const auto again = good(job::to_toml(j));
  CHECK(again == j);
  CHECK(job::to_toml(again) == job::to_toml(j));
  CHECK(options_of(job::variants(again).at(0)).machine.group == 4);
}

}  // namespace

}  // namespace rrfp::study
