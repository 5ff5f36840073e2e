/// Measures the cost of a decision. Goal: at most 200 ns with 1,000 ready tasks, negligible beside
/// any kernel.
///
///   cmake --preset release && cmake --build build/release --target decision_bench
///   build/release/bin/decision_bench
///
/// decide/... is one `decide` that launches one task, arrive/... is one arrival that makes an F
/// ready, and finish/... is the end of a launch on the only rank of the stage. The number in the
/// name is the number of ready tasks, which stays constant during the measurement (counter
/// `ready`). Arrivals come in a random order, so the hint's head is seldom the ready task. Several
/// cores take turns and are timed together: this hides the cost of the clock, and keeps each core's
/// data half cold, as in a process that computes.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include <rrfp/core/stage_core.hpp>
#include <rrfp/policies/registry.hpp>

namespace {

using namespace rrfp;

enum class hint { bfw, sequence };
enum class limit { none, slots, bytes };
enum class part { decide, arrive, finish };

constexpr std::uint32_t cores_timed_together = 8;
constexpr std::uint32_t slots_max = 16;
constexpr std::uint64_t microbatch_bytes = 100;

std::unique_ptr<policy> make_hint(hint h, const pipeline_shape& shape) {
  if (h == hint::bfw) {
    const auto set = policies::registry().make("bfw", shape);
    return (*set)->make(stage_id{shape.stages - 1});
  }
  sequence order;
  for (std::uint32_t i = 0; i < shape.microbatches; ++i)
    for (const auto kind : {task_kind::forward, task_kind::backward, task_kind::weight})
      order.push_back({kind, microbatch_id{i}, chunk_id{0}});
  return make_sequence_policy("sequence", order);
}

memory_limit make_limit(limit l) {
  switch (l) {
    case limit::none: return {};
    case limit::slots: return {slots_max, 0, 0};
    case limit::bytes: return {0, slots_max * microbatch_bytes, 0};
  }
  return {};
}

/// The last of two stages, where an F makes its B ready by itself. Has twice as many microbatches
/// as ready tasks, so that half of a step runs with a constant number of ready tasks.
class loaded_stage {
 public:
  loaded_stage(hint h, limit l, std::uint32_t ready, std::uint32_t seed)
      : shape_{2, 1, 2 * ready, placement::linear},
        core_({shape_, stage_id{1}, 1, 0, dispatch_mode::ready, make_limit(l)},
              [h](const pipeline_shape& shape, stage_id) { return make_hint(h, shape); }),
        arrivals_(shape_.microbatches),
        bytes_(l == limit::bytes ? shape_.microbatches : 0, microbatch_bytes) {
    std::iota(arrivals_.begin(), arrivals_.end(), 0U);
    // Shuffled within windows, as by jitter; the oldest microbatch is never delayed for long.
    std::mt19937 random{seed};
    for (std::size_t at = 0; at < arrivals_.size(); at += 16)
      std::shuffle(
          arrivals_.begin() + static_cast<std::ptrdiff_t>(at),
          arrivals_.begin() + static_cast<std::ptrdiff_t>(std::min(at + 16, arrivals_.size())),
          random);
  }

  void begin_step() {
    while (!core_.step_complete()) finish_and_drain();
    core_.on(step_began{step_id{0}, bytes_});
    arrived_ = 0;
    while (arrived_ < shape_.microbatches / 2) arrive();
  }
  bool can_arrive() const { return arrived_ < shape_.microbatches; }
  void arrive() {
    core_.on(input_arrived{task_kind::forward, microbatch_id{arrivals_[arrived_++]}, chunk_id{0},
                           rank_id{0}});
  }
  void decide() {
    const auto actions = core_.on(rrfp::decide{});
    running_ = std::get<launch>(actions[0]);
  }
  void finish() { core_.on(task_finished{running_.seq, rank_id{0}}); }
  bool ran_forward() const { return running_.what.kind == task_kind::forward; }
  std::uint32_t ready() const { return core_.ready(); }

 private:
  void finish_and_drain() {
    while (can_arrive()) arrive();
    decide();
    finish();
  }

  pipeline_shape shape_;
  stage_core core_;
  std::vector<std::uint32_t> arrivals_;
  std::vector<std::uint64_t> bytes_;
  std::uint32_t arrived_ = 0;
  launch running_;
};

template <class Call>
double seconds_for_one(std::vector<loaded_stage>& stages, Call call) {
  const auto start = std::chrono::steady_clock::now();
  for (auto& stage : stages) call(stage);
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(end - start).count() / cores_timed_together;
}

void measure(benchmark::State& state, part timed, hint h, limit l) {
  const auto ready = static_cast<std::uint32_t>(state.range(0));
  std::vector<loaded_stage> stages;
  for (std::uint32_t i = 0; i < cores_timed_together; ++i) stages.emplace_back(h, l, ready, 1);
  for (auto& stage : stages) stage.begin_step();
  double ready_sum = 0;
  for (auto _ : state) {
    // A round: one arrival, and decisions until an F has run, so that the number of ready tasks
    // returns to its start.
    ready_sum += stages[0].ready();
    std::array<double, 3> seconds{};
    int decisions = 0;
    do {
      seconds[0] += seconds_for_one(stages, [](auto& s) { s.decide(); });
      seconds[1] += seconds_for_one(stages, [](auto& s) { s.finish(); });
      ++decisions;
    } while (!stages[0].ran_forward());
    seconds[2] = seconds_for_one(stages, [](auto& s) { s.arrive(); });
    if (!stages[0].can_arrive())
      for (auto& stage : stages) stage.begin_step();
    switch (timed) {
      case part::decide: state.SetIterationTime(seconds[0] / decisions); break;
      case part::finish: state.SetIterationTime(seconds[1] / decisions); break;
      case part::arrive: state.SetIterationTime(seconds[2]); break;
    }
  }
  state.counters["ready"] = benchmark::Counter(ready_sum, benchmark::Counter::kAvgIterations);
}

void register_all() {
  struct named_case {
    const char* name;
    part timed;
    hint order;
    limit bound;
  };
  constexpr named_case cases[] = {
      {"decide/bfw", part::decide, hint::bfw, limit::none},
      {"decide/bfw_slots", part::decide, hint::bfw, limit::slots},
      {"decide/bfw_bytes", part::decide, hint::bfw, limit::bytes},
      {"decide/sequence", part::decide, hint::sequence, limit::none},
      {"decide/sequence_slots", part::decide, hint::sequence, limit::slots},
      {"arrive/bfw", part::arrive, hint::bfw, limit::none},
      {"arrive/bfw_slots", part::arrive, hint::bfw, limit::slots},
      {"finish/bfw", part::finish, hint::bfw, limit::none},
      {"finish/bfw_slots", part::finish, hint::bfw, limit::slots},
  };
  for (const auto& c : cases)
    benchmark::RegisterBenchmark(c.name, measure, c.timed, c.order, c.bound)
        ->Arg(10)
        ->Arg(100)
        ->Arg(1'000)
        ->Arg(10'000)
        ->UseManualTime()
        ->Iterations(20'000)
        ->Unit(benchmark::kNanosecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
