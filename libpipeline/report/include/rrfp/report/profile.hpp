/// A recorded run as a cost model: what its tasks and messages took, task by task for a replay, or
/// as medians for a job.
///
/// A task takes what the slowest rank of its stage took. Only whole steps count: those with F, and
/// BW or B and W, of every microbatch on every rank. A message takes from the end of its sender, on
/// the rank that ended last, to the decision for its receiver; it can be told only where the
/// receiving stage stood still until then, for else it had arrived some time before.
#pragma once

#include <rrfp/report/trace.hpp>

namespace rrfp::report {

struct timed_task {
  replica_id replica;
  step_id step;
  stage_id stage;
  task what;
  /// With injected delay, and without.
  nanoseconds took = 0;
  nanoseconds undelayed = 0;
};

struct timed_message {
  replica_id replica;
  step_id step;
  /// The receiver: F, B or BW.
  virtual_stage_id to;
  task what;
  /// Mailbox and decision included, and what was injected on the way, which no trace tells.
  nanoseconds took = 0;
};

/// Tasks and messages are ordered by step and replica.
struct profile {
  std::string title;
  pipeline_shape shape;
  std::uint32_t replicas = 1;
  std::uint32_t ranks = 1;
  /// At least one; whole, in order.
  std::vector<step_id> steps;
  /// Of the chosen ones: left out, for they are not whole.
  std::uint64_t cut_steps = 0;
  std::vector<timed_task> tasks;
  std::vector<timed_message> messages;
};

/// The whole steps among first..last. An error if the run has none of them, or none that is whole:
/// it names a task that is missing.
result<profile> profile_of(const traced_run& run, step_id first, step_id last);

/// What happened on replica 0, injected delay included, as rrfp/simulate/duration_table.hpp reads
/// it. The steps are numbered from 0, so that a run of so many steps replays them. A message that
/// nobody waited for has no row, and so takes no time.
std::string durations_csv(const profile& p);

/// [cost] for a job or a workload: what the device takes. Medians over microbatches, steps and
/// replicas, without injected delay, one a virtual stage; link_ms is the median of the messages
/// that can be told and stands only where there are any. A stage that never splits its backward
/// gives the part `backward_share` of its BW to backward_ms and the rest to weight_ms; where a
/// stage does both, the split tasks alone count. Comments say all that, and give counts and
/// percentiles; `source` is what they call the trace.
std::string cost_toml(const profile& p, const std::string& source, double backward_share);

}  // namespace rrfp::report
