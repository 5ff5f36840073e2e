/// One run from the tasks of its ranks.
///
/// Steps: a rank begins a new one when a task occurs again. Only steps with every task on every
/// stage are kept. Clocks: a task cannot begin before the one ended whose output it needs; if the
/// clocks of two neighbouring stages break that, they are shifted to the middle of what all their
/// messages allow. Waits: a rank waited for an input if it came after the end of the task before;
/// all other time between tasks stays the launch gap of reports.
#pragma once

#include <rrfp/foreign/read_traces.hpp>
#include "find_tasks.hpp"

namespace rrfp::foreign {

/// A task, and when its message had come, if the trace says so.
struct placed_record : report::traced_task {
  std::optional<nanoseconds> arrived;
};

/// The run of these ranks of one job; at least one.
result<found_run> assemble(std::vector<rank_tasks> ranks);

/// Whether the times of a run are of one clock for each rank, or of one for all.
enum class clocks : std::uint8_t { many, one };

/// From the first task of a run to its last, by all clocks: 11 days. The sum of the shifts of all
/// stages stays a number.
inline constexpr nanoseconds run_ns_max = 1'000'000'000'000'000;

/// The rest of a run whose shape and tasks are known: title, order, numbers of launches, slots,
/// clocks, waits. Appends to the notes.
status complete(std::vector<placed_record> records, found_run& made, clocks by = clocks::many);

}  // namespace rrfp::foreign
