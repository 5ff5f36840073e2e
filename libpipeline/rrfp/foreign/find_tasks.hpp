/// The tasks of one rank, from what its trace says.
///
/// Three ways, the first that the trace allows:
///
///   names       PP:1F0, Forward 0: the time in the name, without the wait for its message inside
///   functions   one Python function for each task (with_stack=True)
///   operators   Schedule1F1B: a backward is a run of autograd's operators between two messages.
///               Its forward is the one whose operators it belongs to, as autograd's links say. A
///               task begins where the last message before it ended, and ends at the next message
///
/// On a GPU the host runs ahead. There a task lasts from the first to the last kernel that its time
/// on the host launched, collectives left out.
#pragma once

#include "rank_trace.hpp"

namespace rrfp::foreign {

struct found_task : interval {
  task_kind kind = task_kind::forward;
  std::uint32_t virtual_stage = unnamed;
  std::uint32_t microbatch = unnamed;
  /// When its message had come, if the trace says so.
  std::optional<nanoseconds> arrived;
};

enum class found_by : std::uint8_t { names, functions, operators };

struct rank_tasks {
  std::string file;
  std::uint32_t rank = 0;               ///< 0 if the trace does not say it
  std::vector<std::uint32_t> pipeline;  ///< as in rank_trace
  std::vector<found_task> tasks;        ///< ordered by begin, not overlapping
  found_by by = found_by::names;
  bool on_device = false;
};

/// Error: the trace has no task of a pipeline; it says what to record.
result<rank_tasks> find_tasks(const rank_trace& trace);

}  // namespace rrfp::foreign
