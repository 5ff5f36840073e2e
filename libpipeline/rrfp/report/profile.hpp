/// A recorded run as a cost model: the durations of its tasks and messages, one by one for a replay
/// or as medians for a job.
///
/// The duration of a task is that of the slowest rank of its stage. Only complete steps count:
/// those with F, and BW or B and W, of every microbatch on every rank. The duration of a message is
/// the time from the end of its sender, on the rank that ended last, to the decision for its
/// receiver. It is known only if the receiving stage waited until that decision; otherwise the
/// message arrived at some earlier time.
#pragma once

#include <rrfp/report/trace.hpp>

namespace rrfp::report {

struct timed_task {
  replica_id replica;
  step_id step;
  stage_id stage;
  task what;
  /// Duration with and without injected delay.
  nanoseconds took = 0;
  nanoseconds undelayed = 0;
};

struct timed_message {
  replica_id replica;
  step_id step;
  /// The receiver: F, B or BW.
  virtual_stage_id to;
  task what;
  /// Includes mailbox, decision and injected delay of the message, which a trace does not record.
  nanoseconds took = 0;
};

/// Tasks and messages are ordered by step and replica.
struct profile {
  std::string title;
  pipeline_shape shape;
  std::uint32_t replicas = 1;
  std::uint32_t ranks = 1;
  /// The complete steps, in order; at least one.
  std::vector<step_id> steps;
  /// Number of chosen steps that were skipped because they are incomplete.
  std::uint64_t cut_steps = 0;
  std::vector<timed_task> tasks;
  std::vector<timed_message> messages;
};

/// The profile of the complete steps among first..last. Errors: the run has none of these steps, or
/// none that is complete; then the error names a missing task.
result<profile> profile_of(const traced_run& run, step_id first, step_id last);

/// The durations on replica 0, including injected delay, in the format of
/// rrfp/simulate/duration_table.hpp. The steps are renumbered without gaps, so that a run of as
/// many steps replays them. A message that no stage waited for has no row and therefore takes no
/// time.
std::string durations_csv(const profile& p);

/// [cost] for a job or a workload: the durations on the device without injected delay, as medians
/// over microbatches, steps and replicas, one per virtual stage. link_ms is the median over the
/// messages with a known duration, and is omitted if there is none. If a stage never splits its
/// backward, backward_ms is `backward_share` of its BW and weight_ms is the rest; if a stage does
/// both, only the split tasks count. Comments explain this and give counts and percentiles;
/// `source` is the name of the trace in them.
std::string cost_toml(const profile& p, const std::string& source, double backward_share);

}  // namespace rrfp::report
