/// What `rrfp-node run --trace` left, read back: the tasks and the waits of each run.
///
/// Times are nanoseconds since the run began, as the nodes' clocks gave them. A trace that was read
/// is whole in one sense only: every task is well-formed, and on one rank no two overlap. Tasks may
/// be missing, because the recorder's limit was met or the run was interrupted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/result.hpp>

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
  reason why;
  nanoseconds decided = 0;
  nanoseconds begin = 0;
  nanoseconds end = 0;
  /// Part of [begin, end] that was injected jitter; its last part.
  nanoseconds delay = 0;
  /// Microbatches that the stage held when the task had ended.
  std::int64_t slots = 0;
  /// Activation memory of the rank then.
  std::int64_t bytes = 0;
};

/// One time that a stage had nothing to launch.
struct traced_wait {
  replica_id replica;
  stage_id stage;
  step_id step;
  wait what;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

struct traced_run {
  std::string title;
  std::uint32_t replicas = 1;
  std::uint32_t ranks = 1;
  /// Where the chunks lie is not in the trace; with two chunks it is told from whose second chunk
  /// forwards a microbatch first.
  pipeline_shape shape;
  /// Ordered by replica, stage, rank and begin.
  std::vector<traced_task> tasks;
  /// Ordered by replica, stage and begin.
  std::vector<traced_wait> waits;
};

struct trace_file {
  std::vector<traced_run> runs;
  /// Records that the recorder had no room for.
  std::uint64_t dropped = 0;
};

inline constexpr std::size_t trace_bytes_max = std::size_t{2} << 30;
inline constexpr std::uint32_t traced_stages_max = 4096;
inline constexpr std::uint32_t traced_ranks_max = 4096;

/// The trace in `text`; an error names `file`, the line or event, what was expected and what came.
result<trace_file> parse_trace(std::string_view text, const std::string& file);

/// The trace in a file of at most trace_bytes_max.
result<trace_file> read_trace(const std::string& file);

}  // namespace rrfp::report
