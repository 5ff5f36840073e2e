/// How short could this step have been, whatever the order?
///
/// A stage cannot begin before the quickest microbatch reaches its first virtual stage (head), must
/// do all its F and B, and then the last of those B still has to travel down to virtual stage 0
/// (tail). Its W may run while that B travels, so of W and tail only the longer counts:
///
///   bound(stage) = head + sum F + sum B + max(sum W, tail),    a BW counts as B
///
/// Head and tail take the cheapest microbatch, links included. Besides, no step is shorter than the
/// way of its slowest microbatch, there and back. Fed as the run goes: along one microbatch the
/// tasks of F (and then of B) come in the order of the virtual stages under every schedule.
#pragma once

#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

class lower_bound {
 public:
  explicit lower_bound(const pipeline_shape& shape);

  void reset();
  /// A task of `duration` runs on virtual stage `at`.
  void add_task(virtual_stage_id at, stage_id stage, const task& what, nanoseconds duration);
  /// The result of a task of this microbatch travels for `duration`.
  void add_link(task_kind direction, microbatch_id mb, nanoseconds duration);
  /// All tasks of the step were added.
  nanoseconds value() const;

 private:
  struct stage_sums {
    nanoseconds forward_backward = 0;
    nanoseconds weight = 0;
    nanoseconds head = 0;
  };
  /// The way that a microbatch has gone: up to F of some virtual stage, down to B of some other.
  struct journey {
    nanoseconds up = 0;
    nanoseconds down = 0;
  };

  std::uint32_t stages_;
  std::uint32_t microbatches_;
  std::vector<stage_sums> stages_sums_;
  std::vector<journey> ways_;
  /// journey::down at the end of B on the stage's first virtual stage, by (stage, microbatch).
  std::vector<nanoseconds> down_at_stage_;
};

}  // namespace rrfp::simulate
