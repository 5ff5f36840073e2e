// Timers in logs give steps of mean times.
#include <catch2/catch.hpp>

#include "hand_made.hpp"

namespace rrfp::foreign::testing {
namespace {

using names = std::vector<std::string>;
using Catch::Matchers::Contains;

const std::string megatron_arguments =
    "------------------------ arguments ------------------------\n"
    "  data_parallel_size .............................. 2\n"
    "  global_batch_size ............................... 16\n"
    "  micro_batch_size ................................ 4\n"
    "  pipeline_model_parallel_size .................... 2\n"
    "  use_tp_pp_dp_mapping ............................ False\n"
    "  virtual_pipeline_model_parallel_size ............ None\n"
    "  world_size ...................................... 4\n"
    "-------------------- end of arguments ---------------------\n";

/// Milliseconds of a timer, by rank.
std::string timer(const std::string& name, const std::vector<double>& times,
                  const std::string& prefix = "") {
  auto text = prefix + "  " + name + ":\n";
  for (std::size_t rank = 0; rank < times.size(); ++rank)
    text += fmt::format("{}     rank {:2d}: {:.2f}\n", prefix, rank, times[rank]);
  return text;
}

/// One logging interval of four ranks: two stages with two replicas each.
std::string megatron_interval(double forward, const std::string& prefix = "") {
  return prefix +
         " [2026-01-01 10:00:00] iteration       10/     100 | elapsed time per iteration "
         "(ms): 140.0 |\n" +
         prefix + "times across ranks (ms):\n" +
         timer("forward-backward", {110, 110, 109, 109}, prefix) +
         timer("forward-compute", {forward - 2, forward + 2, forward, forward}, prefix) +
         timer("backward-compute", {40, 40, 60, 60}, prefix) +
         timer("forward-recv", {0, 0, 11, 11}, prefix);
}

std::string refusal_of_log(const std::string& text) {
  written files;
  files.add("train.log", text);
  return files.refusal();
}

}  // namespace

TEST_CASE("Megatron's timers give 1F1B with the mean times of each stage") {
  for (const auto* const prefix : {"", "[default3]:", "INFO:megatron.core.timers:"}) {
    written files;
    files.add("rank0.log", megatron_arguments);
    files.add("rank3.log", megatron_interval(20, prefix) + megatron_interval(24, prefix));
    const auto found = files.run();
    CHECK(found.run.shape == pipeline_shape{2, 1, 2, placement::linear});
    CHECK(tasks_of(found, 0) == names{"F0 0-10", "F1 10-20", "BW0 50-70", "BW1 90-110"});
    CHECK(tasks_of(found, 1) == names{"F0 10-20", "BW0 20-50", "F1 50-60", "BW1 60-90"});
    CHECK(tasks_of(found, 0, 2).front() == "F0 110-122");
    CHECK_THAT(found.notes.at(0), Contains("timers of Megatron-LM"));
    CHECK_THAT(found.notes.at(1), Contains("110.000 ms for forward and backward of a step"));
    CHECK(found.notes.size() == 2);
  }
}

TEST_CASE("an interval of a log that is cut off is left out") {
  written files;
  auto text = megatron_arguments + megatron_interval(20) + megatron_interval(24);
  files.add("train.log", text.substr(0, text.rfind("backward-compute")));
  CHECK(tasks_of(files.run(), 0, 2).empty());
}

TEST_CASE("DeepSpeed prints sums of several steps, and often the first rank alone") {
  const std::string settings =
      "[2026-01-01 10:00:00] [INFO] [engine.py:105:__init__] CONFIG: micro_batches=2 "
      "micro_batch_size=4\n"
      "[2026-01-01 10:00:00] [INFO] [engine.py:165:__init__] RANK=0 STAGE=0 LAYERS=3 [0, 3) "
      "STAGE_PA"
      "RAMS=1 (0.000M)\n"
      "[2026-01-01 10:00:00] [INFO] [engine.py:165:__init__] RANK=1 STAGE=1 LAYERS=3 [3, 6) "
      "STAGE_PA"
      "RAMS=1 (0.000M)\n";
  const auto timers = [](int rank, double forward, double backward) {
    return fmt::format(
        "[Rank {}] time (ms) | batch_input: 1.00 | fwd_microstep: {:.2f} | bwd_microstep: {:.2f} | "
        "bwd_inner_microstep: 1.00 | bwd_allreduce_microstep: 0.00 | step_microstep: 5.00\n"
        "[Rank {}] time (ms) | fwd: 1.00 | bwd: 1.00 | bwd_inner: 1.00 | step: 5.00\n",
        rank, forward, backward, rank);
  };
  const auto report = [](int step) {
    return fmt::format("steps: {} loss: 2.3010 iter time (s): 0.120 samples/sec: 66.667\n", step);
  };
  {
    written files;
    files.add("train.log", settings + timers(0, 200, 400) + timers(1, 200, 600) + report(10) +
                               timers(0, 200, 400) + timers(1, 200, 600) + report(20));
    const auto found = files.run();
    CHECK(found.run.shape == pipeline_shape{2, 1, 2, placement::linear});
    CHECK(tasks_of(found, 1) == names{"F0 10-20", "BW0 20-50", "F1 50-60", "BW1 60-90"});
    CHECK_THAT(found.notes.back(), Contains("120.000 ms for all of a step"));
  }
  written files;
  files.add("train.log",
            settings + timers(0, 200, 400) + report(10) + timers(0, 200, 400) + report(20));
  const auto found = files.run();
  CHECK(tasks_of(found, 1) == names{"F0 10-20", "BW0 20-40", "F1 40-50", "BW1 50-70"});
  CHECK_THAT(found.notes.at(1), Contains("Only 1 of 2 stages printed timers"));
}

TEST_CASE("numbers that a log does not say come from the options") {
  written files;
  files.add("train.log", megatron_interval(20));
  CHECK_THAT(files.refusal(), Contains("expected the number of stages"));
  CHECK_THAT(files.refusal({.stages = 2}), Contains("expected the number of microbatches"));
  const auto found = files.run({.stages = 2, .microbatches = 2});
  CHECK(tasks_of(found, 0) == names{"F0 0-10", "F1 10-20", "BW0 50-70", "BW1 90-110"});
  CHECK_THAT(files.refusal({.stages = 5, .microbatches = 2}), Contains("ranks of 5 stages"));
  CHECK_THAT(files.refusal({.stages = 2, .microbatches = 100'000'000}),
             Contains("number of microbatches"));
}

TEST_CASE("of a long log the last steps are used") {
  written files;
  files.add("train.log", megatron_interval(20) + megatron_interval(24) + megatron_interval(28));
  const auto found = files.run({.stages = 2, .microbatches = 200'000});
  CHECK(found.run.tasks.size() == 2 * 2 * 2 * 200'000);
  CHECK(found.notes.at(1) == "Of 3 steps of the log, the last 2 are used.");
  CHECK_THAT(files.refusal({.stages = 2, .microbatches = 1'000'000}),
             Contains("at most 2000000 tasks in a step"));
}

TEST_CASE("logs without the times of each rank are refused") {
  CHECK_THAT(refusal_of_log("epoch 1\nloss 2\n"), Contains("got a text that is none of these"));
  CHECK_THAT(refusal_of_log(megatron_arguments + "times across ranks (ms):\n" +
                            timer("forward-backward", {1, 1, 1, 1})),
             Contains("--timing-log-level 2"));
  CHECK_THAT(
      refusal_of_log("(min, max) time across ranks (ms):\n    forward-compute ....: (1.00, 2.0)"),
      Contains("--timing-log-option all"));
  CHECK_THAT(refusal_of_log("  virtual_pipeline_model_parallel_size ............ 2\n" +
                            megatron_interval(20)),
             Contains("got virtual_pipeline_model_parallel_size 2"));
  CHECK_THAT(refusal_of_log("[Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: 2.00\n"
                            "x RANK=1 STAGE=1 x\nCONFIG: micro_batches=2 x\n"),
             Contains("two lines with \"steps:\""));
  CHECK_THAT(refusal_of_log(megatron_arguments + megatron_interval(20) +
                            "[Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: 2.00\n"),
             Contains("of Megatron-LM or of DeepSpeed, got both"));
  CHECK_THAT(refusal_of_log(std::string(100'000, 'x')), Contains("lines of at most 65536 bytes"));
}

TEST_CASE("steps that together are longer than a run may be are refused") {
  std::string log = megatron_arguments;
  for (int i = 0; i < 9999; ++i) log += megatron_interval(9.9e8);
  CHECK_THAT(refusal_of_log(log), Contains("expected tasks within 12 days"));
}

TEST_CASE("a log may be compressed") {
  written files;
  files.add_compressed("train.log.gz", megatron_arguments + megatron_interval(20));
  CHECK(tasks_of(files.run(), 0).front() == "F0 0-10");
}

}  // namespace rrfp::foreign::testing
