/// The actor runtime as an engine of experiments: every stage and every rank of a cell is an actor
/// on an emulated device in this process, and time is real.
///
/// Task and link times are those that the simulator uses for the same cell, multiplied by the time
/// scale; everything else (mailboxes, decisions, coordination of ranks) is real. Each replica runs
/// concurrently in its own session. Thread-safe: several cells may run at once if the machine has
/// spare cores.
#pragma once

#include "cell.hpp"

namespace rrfp::wall_clock {

result<experiment::outcome> run(const experiment::cell& c);

}  // namespace rrfp::wall_clock
