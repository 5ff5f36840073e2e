/// Reads the file that `rrfp-node run --trace` writes: the tasks and the waits of each run.
///
/// Times are nanoseconds since the run began, by the nodes' clocks. Guaranteed for every trace:
/// each task is well-formed, and tasks of one rank do not overlap. Tasks may be missing, because
/// the recorder reached its limit or the run was interrupted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp::report {

using nanoseconds = std::int64_t;

/// One task on one rank: decided <= begin <= end.
struct traced_task {
  replica_id replica;
  stage_id stage;
  rank_id rank;
  step_id step;
  launch_seq seq;
  task what;
  task_piece piece;
  forward_pass pass = forward_pass::once;
  reason why;
  nanoseconds decided = 0;
  nanoseconds begin = 0;
  nanoseconds end = 0;
  /// Injected jitter, which is the last part of [begin, end].
  nanoseconds delay = 0;
  /// Number of microbatches that the stage held when the task ended.
  std::int64_t slots = 0;
  /// Activation bytes of the rank when the task ended.
  std::int64_t bytes = 0;
};

/// Whether such a wait ends when an input arrives.
inline bool ends_with_an_arrival(wait_cause c) {
  return c == wait_cause::input || c == wait_cause::in_order || c == wait_cause::ranks;
}

/// What a task sends: the output of a virtual stage for a microbatch; true: of F.
using task_output = std::tuple<step_id, replica_id, virtual_stage_id, microbatch_id, bool>;

/// `t` has the members replica, step, stage and what.
template <class Task>
task_output output_of(const pipeline_shape& shape, const Task& t) {
  return {t.step, t.replica, shape.virtual_stage(t.stage, t.what.chunk), t.what.mb,
          t.what.kind == task_kind::forward};
}

/// An interval in which a stage had nothing to launch.
struct traced_wait {
  replica_id replica;
  stage_id stage;
  step_id step;
  wait what;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

/// A step as the job saw it: with the gradient exchange and the update, without evaluations.
struct traced_step {
  step_id step;
  nanoseconds took = 0;
  /// Measured activation memory of the rank that held most.
  std::int64_t peak_bytes = 0;
};

/// A loss of a node after which the run went on.
struct traced_recovery {
  std::string lost;  ///< in the words of the program
  std::uint64_t step = 0;
  bool from_copies = false;  ///< else from a checkpoint or the first step
  std::uint64_t repeated_steps = 0;
  nanoseconds held = 0;  ///< until all nodes had joined again
};

struct traced_run {
  std::string title;
  std::uint32_t replicas = 1;
  std::uint32_t ranks = 1;
  /// A trace does not record the placement. With two chunks, it is inferred from which end of the
  /// pipeline runs the second chunk of a microbatch first.
  pipeline_shape shape;
  /// Ordered by replica, stage, rank and begin.
  std::vector<traced_task> tasks;
  /// Ordered by replica, stage and begin.
  std::vector<traced_wait> waits;
  std::vector<traced_step> steps;  ///< in order of time; none in traces of older versions
  std::vector<traced_recovery> recoveries;
};

struct trace_file {
  std::vector<traced_run> runs;
  /// Number of records that the recorder dropped because it was full.
  std::uint64_t dropped = 0;
};

inline constexpr std::size_t trace_bytes_max = std::size_t{2} << 30;
inline constexpr std::uint32_t traced_stages_max = 4096;
inline constexpr std::uint32_t traced_ranks_max = 4096;
/// Maximum number of ranks of all stages and replicas together.
inline constexpr std::uint64_t traced_lanes_max = 65'536;
inline constexpr std::uint32_t traced_pieces_max = 1024;
inline constexpr std::uint32_t traced_chunks_max = 1024;
inline constexpr std::uint32_t traced_microbatches_max = 1'000'000;

/// The placement of a run whose stages and chunks are known; see traced_run::shape.
placement infer_placement(const traced_run& run);

/// Parses the trace in `text`; an error names `file`, the line or event, and what was expected.
result<trace_file> parse_trace(std::string_view text, const std::string& file);

/// Reads the trace in a file, plain or compressed by gzip, of at most trace_bytes_max bytes
/// uncompressed.
result<trace_file> read_trace(const std::string& file);

}  // namespace rrfp::report
