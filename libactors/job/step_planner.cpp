#include "step_planner.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace rrfp::actors {

namespace {

constexpr double share_of_steps = 0.01;
/// Of a step, all strategies together: more would not change the choice.
constexpr std::size_t simulations_max = 1000;
/// Before the first simulation was timed.
constexpr double expected_cost_of_task = 3e3;

/// Of this thread, in nanoseconds.
double cpu_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

/// The times of a step, from what its stages measured.
simulate::step_times times_of(const pipeline_shape& shape,
                              const std::vector<stage_times>& measured) {
  simulate::step_times all{shape};
  for (std::uint32_t v = 0; v < shape.virtual_stages(); ++v) {
    const virtual_stage_id vs{v};
    const auto [stage, chunk] = shape.at(vs);
    const auto& own = measured[stage.value()];
    for (std::uint32_t i = 0; i < shape.microbatches; ++i) {
      const microbatch_id mb{i};
      const auto to = std::size_t{v} * shape.microbatches + i;
      const auto from = shape.index(mb, chunk);
      all.forward[to] = own.forward[from];
      all.backward[to] = own.backward[from];
      all.weight[to] = own.weight[from];
      const auto delay = [&](task_kind kind, const auto& arrived, auto ended) {
        const auto sender = shape.producer_of(stage, {kind, mb, chunk});
        if (!sender || sender->stage == stage) return std::int64_t{0};
        const auto sent =
            (measured[sender->stage.value()].*ended)[shape.index(mb, sender->what.chunk)];
        return std::max<std::int64_t>(arrived[from] - sent, 0);
      };
      all.activation[to] =
          delay(task_kind::forward, own.forward_arrived, &stage_times::forward_ended);
      all.gradient[to] =
          delay(task_kind::backward, own.backward_arrived, &stage_times::backward_ended);
    }
  }
  return all;
}

}  // namespace

step_planner::step_planner(simulate::plan candidates,
                           std::shared_ptr<const simulate::cost_model> expected, step_id first,
                           std::unique_ptr<work_queue> thread)
    : shape_(candidates.shape),
      expected_(std::move(expected)),
      measured_(shape_.stages),
      strategies_(candidates.strategies.size()),
      planner_(std::move(candidates), expected_),
      cost_(3.0 * shape_.virtual_stages() * shape_.microbatches * expected_cost_of_task),
      thread_(std::move(thread)) {
  thread_->post([this, first] {
    const sched_param none{};
    sched_setscheduler(0, SCHED_IDLE, &none);
    plan(first, 0);
  });
}

step_planner::~step_planner() { stopping_ = true; }

simulate::step_choice step_planner::choose(step_id step) const {
  const std::lock_guard lock{mutex_};
  return {choice_.strategy, planned_ == step ? choice_.forecast : 0};
}

void step_planner::record(const stage_step_ended& m) { measured_[m.stage.value()] = m.times; }

void step_planner::finish(step_id step, std::int64_t took) {
  std::int64_t gaps = 0;
  std::uint64_t launches = 0;
  for (const auto& of_stage : measured_) {
    gaps += of_stage.launch_gap;
    launches += of_stage.launches;
  }
  const auto gap = launches == 0 ? 0 : gaps / static_cast<std::int64_t>(launches);
  thread_->post([this, step, took, gap,
                 measured = std::exchange(measured_, std::vector<stage_times>(shape_.stages))] {
    planner_.record(step, times_of(shape_, measured));
    planner_.set_launch_cost(gap);
    // The next step has begun; there is time to plan the one after it.
    plan(step_id{step.value() + 2}, took);
  });
}

void step_planner::plan(step_id step, std::int64_t earned) {
  allowance_ =
      std::min(allowance_ + share_of_steps * static_cast<double>(earned), std::max(1e8, 2 * cost_));
  const auto publish = [&] {
    const auto choice = planner_.choice(step);
    const std::lock_guard lock{mutex_};
    planned_ = step;
    choice_ = choice;
  };
  publish();
  auto simulations = planner_.has_measured() ? simulations_max : strategies_;
  for (; simulations > 0 && allowance_ >= cost_ && !stopping_; --simulations) {
    const auto began = cpu_time();
    planner_.simulate_next(step);
    cost_ = cpu_time() - began;
    allowance_ -= cost_;
    publish();
  }
}

}  // namespace rrfp::actors
