#include "mean_steps.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <rrfp/core/policy.hpp>

#include "assemble.hpp"

namespace rrfp::foreign {

namespace {

constexpr std::uint64_t tasks_max = 2'000'000;

/// The tasks of a stage in the order of 1F1B: one forward for each later stage, then pairs.
sequence order_of(std::uint32_t stages, std::uint32_t stage, std::uint32_t microbatches) {
  sequence order;
  const auto first = std::min(stages - stage - 1, microbatches);
  const auto add = [&](task_kind kind, std::uint32_t mb) {
    order.push_back({kind, microbatch_id{mb}, chunk_id{0}});
  };
  for (std::uint32_t mb = 0; mb < first; ++mb) add(task_kind::forward, mb);
  for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
    if (first + mb < microbatches) add(task_kind::forward, first + mb);
    add(task_kind::backward_weight, mb);
  }
  return order;
}

/// One step in virtual time, from `begin` on.
class mean_step {
 public:
  mean_step(const std::vector<mean_times>& times, std::uint32_t microbatches, step_id step,
            nanoseconds begin)
      : times_(times),
        step_(step),
        free_(times.size(), begin),
        forwarded_(times.size(), std::vector<nanoseconds>(microbatches, unknown)),
        backwarded_(forwarded_) {}

  /// Appends its tasks; returns when the last one ends.
  nanoseconds run(const std::vector<sequence>& orders, std::vector<placed_record>& records) {
    std::vector<std::size_t> next(orders.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t s = 0; s < orders.size(); ++s)
        for (; next[s] < orders[s].size() && runs(s, orders[s][next[s]], records); ++next[s])
          moved = true;
    }
    return std::ranges::max(free_);
  }

 private:
  static constexpr nanoseconds unknown = -1;

  /// Whether the input of the task is there; then it runs.
  bool runs(std::uint32_t stage, const task& t, std::vector<placed_record>& records) {
    const bool is_forward = t.kind == task_kind::forward;
    const auto mb = t.mb.value();
    const bool is_input = is_forward ? stage == 0 : stage + 1 == times_.size();
    const auto input = is_input     ? free_[stage]
                       : is_forward ? forwarded_[stage - 1][mb]
                                    : backwarded_[stage + 1][mb];
    if (input == unknown) return false;
    auto& made = records.emplace_back();
    made.step = step_;
    made.stage = stage_id{stage};
    made.what = t;
    made.begin = std::max(free_[stage], input);
    const auto ms = is_forward ? times_[stage].forward : times_[stage].backward;
    made.end = made.begin + std::llround(ms * 1e6);
    free_[stage] = (is_forward ? forwarded_ : backwarded_)[stage][mb] = made.end;
    return true;
  }

  const std::vector<mean_times>& times_;
  step_id step_;
  std::vector<nanoseconds> free_;  ///< by stage
  std::vector<std::vector<nanoseconds>> forwarded_, backwarded_;
};

}  // namespace

status make_mean_steps(const times_of_steps& times, std::uint32_t microbatches, found_run& made) {
  const auto stages = static_cast<std::uint32_t>(times.front().size());
  const auto fitting = tasks_max / (std::uint64_t{2} * stages * microbatches);
  if (fitting == 0)
    return error{
        fmt::format("{}: expected at most {} tasks in a step, got {} stages and {} "
                    "microbatches",
                    made.file, tasks_max, stages, microbatches)};
  const auto first = times.size() - std::min<std::size_t>(times.size(), fitting);
  if (first > 0)
    made.notes.push_back(fmt::format("Of {} steps of the log, the last {} are used.", times.size(),
                                     times.size() - first));
  made.run.shape = {stages, 1, microbatches, placement::linear};
  std::vector<sequence> orders;
  for (std::uint32_t s = 0; s < stages; ++s) orders.push_back(order_of(stages, s, microbatches));
  std::vector<placed_record> records;
  nanoseconds begin = 0;
  // complete() refuses a longer run, whose times may be no numbers.
  for (auto i = first; i < times.size() && begin <= run_ns_max; ++i)
    begin = mean_step{times[i], microbatches, step_id{i}, begin}.run(orders, records);
  return complete(std::move(records), made, clocks::one);
}

}  // namespace rrfp::foreign
