/// A lower bound on the duration of a step, for any order of its tasks.
///
/// A stage cannot start before the fastest microbatch reaches its first virtual stage (head). It
/// must run all its F and B, and then the gradient of its last B must still travel down to virtual
/// stage 0 (tail). Its W may overlap the tail, so only the longer of W and tail counts:
///
///   bound(stage) = head + sum F + sum B + max(sum W, tail),    a BW counts as B
///
/// Head and tail use the cheapest microbatch, links included. In addition, no step is shorter than
/// the path of its slowest microbatch, forward and back. The sums are updated during the run: along
/// one microbatch, the tasks of F (and then of B) come in the order of the virtual stages under
/// every schedule.
#pragma once

#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

class lower_bound {
 public:
  explicit lower_bound(const pipeline_shape& shape);

  void reset();
  /// Adds a task of `duration` on virtual stage `at`.
  void add_task(virtual_stage_id at, stage_id stage, const task& t, nanoseconds duration);
  /// Adds a message of `duration` with the result of a task of this microbatch.
  void add_link(task_kind direction, microbatch_id mb, nanoseconds duration);
  /// The bound, once all tasks of the step are added.
  nanoseconds value() const;

 private:
  struct stage_sums {
    nanoseconds forward_backward = 0;
    nanoseconds weight = 0;
    nanoseconds head = 0;
  };
  /// The time of a microbatch's path so far: up to the F of one virtual stage, down to the B of
  /// another.
  struct path_time {
    nanoseconds up = 0;
    nanoseconds down = 0;
  };

  std::uint32_t stages_;
  std::uint32_t microbatches_;
  std::vector<stage_sums> stages_sums_;
  std::vector<path_time> paths_;
  /// path::down at the end of B on the stage's first virtual stage, by (stage, microbatch).
  std::vector<nanoseconds> down_at_stage_;
};

}  // namespace rrfp::simulate
