/// The paper's example of two stages, and the bounds of its theory (arXiv 2605.18750, figure 3,
/// theorem 6.1 and corollary C.2), with the real policies on the simulator.
#include <algorithm>

#include <rrfp/simulate/keyed_random.hpp>

#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

/// Durations of F and of the fused backward by stage and microbatch; messages take no time.
struct durations {
  std::vector<std::vector<nanoseconds>> forward;
  std::vector<std::vector<nanoseconds>> backward;

  std::uint32_t stages() const { return static_cast<std::uint32_t>(forward.size()); }
  std::uint32_t microbatches() const { return static_cast<std::uint32_t>(forward[0].size()); }
  pipeline_shape shape() const { return linear(stages(), microbatches()); }
};

function_costs costs_of(const durations& d) {
  function_costs costs;
  costs.task_time = [&d](stage_id s, const task& t) {
    return (t.kind == task_kind::forward ? d.forward : d.backward)[s.value()][t.mb.value()];
  };
  return costs;
}

nanoseconds makespan_of(std::string_view policy, dispatch_mode mode, const durations& d) {
  return run_well(plan_of(policy, mode, d.shape()), costs_of(d)).makespan;
}

/// The makespan of one direction alone, all of its microbatches available at its first stage.
nanoseconds one_way(const std::vector<std::vector<nanoseconds>>& by_stage, bool from_last) {
  std::vector<nanoseconds> end(by_stage.front().size(), 0);
  for (std::size_t i = 0; i < by_stage.size(); ++i) {
    const auto& stage = by_stage[from_last ? by_stage.size() - 1 - i : i];
    nanoseconds free_at = 0;
    for (std::size_t j = 0; j < stage.size(); ++j)
      end[j] = free_at = std::max(free_at, end[j]) + stage[j];
  }
  return end.back();
}

/// Theorem 6.1.
nanoseconds bound_of(const durations& d) {
  const auto slowest_over_last = [&](const auto& by_stage, std::uint32_t j) {
    nanoseconds slowest = 0;
    for (const auto& stage : by_stage) slowest = std::max(slowest, stage[j]);
    return slowest - by_stage.back()[j];
  };
  auto bound = one_way(d.forward, false) + one_way(d.backward, true);
  for (std::uint32_t j = 0; j < d.microbatches(); ++j) {
    if (j > 0) bound += slowest_over_last(d.forward, j);
    if (j + 1 < d.microbatches()) bound += slowest_over_last(d.backward, j);
  }
  return bound;
}

durations figure_3(nanoseconds first_backward) {
  const std::vector<nanoseconds> forward{7, 8, 8};
  return {{forward, forward}, {{first_backward, 10, 8}, {first_backward, 10, 8}}};
}

durations random_durations(std::uint64_t seed) {
  simulate::keyed_random random{seed};
  const auto up_to = [&](std::uint64_t most) { return 1 + random.bits() % most; };
  const auto stages = up_to(9);
  const auto microbatches = up_to(24);
  // From nearly equal durations to very different ones.
  const auto most = up_to(100);
  durations d;
  for (auto* direction : {&d.forward, &d.backward})
    for (std::uint64_t s = 0; s < stages; ++s) {
      auto& stage = direction->emplace_back();
      for (std::uint64_t mb = 0; mb < microbatches; ++mb)
        stage.push_back(static_cast<nanoseconds>(20 + up_to(most)));
    }
  return d;
}

/// The largest D, and the largest number of entries in one of the paper's four buffers of a stage.
class buffer_watch final : public observer {
 public:
  explicit buffer_watch(const pipeline_shape& shape) : shape_(shape), stages_(shape.stages) {}

  std::int64_t ahead_peak = 0;
  std::int64_t entries_peak = 0;

  void on_event(stage_id s, nanoseconds, const event& e) override {
    const auto* const arrived = std::get_if<input_arrived>(&e);
    if (arrived == nullptr) return;
    const auto forward = arrived->kind == task_kind::forward;
    const auto from = shape_.producer_of(s, {arrived->kind, arrived->mb, arrived->chunk});
    if (!from) return;
    auto& sender = stages_[from->stage.value()];
    --(forward ? sender.forward_finished : sender.backward_finished);
    auto& receiver = stages_[s.value()];
    count(forward ? receiver.forward_ready : receiver.backward_ready);
  }
  void on_task(const task_span& ran) override {
    const auto& t = ran.what.what;
    if (t.kind == task_kind::weight) return;
    auto& stage = stages_[ran.stage.value()];
    const auto vs = shape_.virtual_stage(ran.stage, t.chunk);
    const bool sends = shape_.consumer_of(ran.stage, t).has_value();
    if (t.kind == task_kind::forward) {
      ahead_peak = std::max(ahead_peak, ++stage.ahead);
      // The last virtual stage moves its output straight into its backward-ready buffer.
      count(sends ? stage.forward_finished : stage.backward_ready);
      return;
    }
    --stage.ahead;
    --stage.backward_ready;
    if (!shape_.is_first(vs)) --stage.forward_ready;
    if (sends) count(stage.backward_finished);
  }

 private:
  struct buffers {
    std::int64_t ahead = 0;
    std::int64_t forward_ready = 0;
    std::int64_t forward_finished = 0;
    std::int64_t backward_ready = 0;
    std::int64_t backward_finished = 0;
  };

  void count(std::int64_t& entries) { entries_peak = std::max(entries_peak, ++entries); }

  const pipeline_shape shape_;
  std::vector<buffers> stages_;
};

}  // namespace

TEST_CASE("the paper's two stages take 65, and with a late B 86 in order and 76 by readiness") {
  const auto expected = figure_3(9);
  const auto late = figure_3(20);
  CHECK(makespan_of("one_f_one_b", dispatch_mode::in_order, expected) == 65);
  CHECK(makespan_of("one_f_one_b", dispatch_mode::in_order, late) == 86);
  for (const auto* policy : {"bf", "fb", "b_priority"}) {
    INFO(policy);
    CHECK(makespan_of(policy, dispatch_mode::ready, expected) == 65);
    CHECK(makespan_of(policy, dispatch_mode::ready, late) == 76);
  }
  CHECK(makespan_of("f_priority", dispatch_mode::ready, expected) == 67);
  CHECK(makespan_of("f_priority", dispatch_mode::ready, late) == 78);
  CHECK(bound_of(expected) == 68);
  CHECK(bound_of(late) == 89);
}

TEST_CASE("BF never takes longer than the bound of theorem 6.1, nor less than the last stage") {
  int close = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const auto d = random_durations(seed);
    INFO("seed " << seed << ", " << d.stages() << " stages, " << d.microbatches()
                 << " microbatches");
    const auto took = makespan_of("bf", dispatch_mode::ready, d);
    CHECK(took <= bound_of(d));
    nanoseconds least = 0;
    for (std::uint32_t j = 0; j < d.microbatches(); ++j)
      least += d.forward.back()[j] + d.backward.back()[j];
    CHECK(took >= least);
    close += 10 * took > 9 * bound_of(d);
  }
  CHECK(close > 20);
}

TEST_CASE("no buffer exceeds the limit of corollary C.2, for any ready policy") {
  int reached = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const auto stages = static_cast<std::uint32_t>(2 + seed % 7);
    const auto chunks = static_cast<std::uint32_t>(1 + seed % 3);
    const pipeline_shape shape{stages, chunks, 24,
                               chunks == 1 ? placement::linear : placement::interleaved};
    const auto limit = static_cast<std::uint32_t>(1 + seed % 11);
    const auto most = limit + (chunks == 1 ? 0 : chunks);
    const auto costs = jittered_costs(shape, seed, 1.5);
    for (const auto* policy : {"bf", "fb", "b_priority", "f_priority", "bfw", "bfw_plus"}) {
      INFO("seed " << seed << ", " << policy << ", limit " << limit << ", chunks " << chunks);
      auto p = plan_of(policy, dispatch_mode::ready, shape);
      p.limit.run_ahead = limit;
      buffer_watch watch{shape};
      run_well(p, costs, &watch);
      CHECK(watch.ahead_peak <= most);
      CHECK(watch.entries_peak <= most);
      reached += watch.ahead_peak == most;
    }
  }
  CHECK(reached > 100);
}

TEST_CASE("at the limit a V exceeds it by no more than its chunks, either") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const pipeline_shape shape{4, 2, 16, placement::v};
    const auto limit = static_cast<std::uint32_t>(1 + seed % 9);
    auto p = plan_of(seed % 2 == 0 ? "bf" : "bfw", dispatch_mode::ready, shape);
    p.limit.run_ahead = limit;
    buffer_watch watch{shape};
    run_well(p, jittered_costs(shape, seed, 1.5), &watch);
    CHECK(watch.ahead_peak <= limit + 2);
  }
}

}  // namespace rrfp::simulate
