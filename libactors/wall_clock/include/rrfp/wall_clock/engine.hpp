/// The actor runtime as an engine of experiments: every stage and every rank of a cell is an actor
/// on an emulated device, in this process, and time is the machine's.
///
/// Task times and link times are those that the simulator takes for the same cell, stretched by its
/// time scale; everything between (mailboxes, decisions, coordination of ranks) is real. Replicas
/// run at the same time in sessions of their own. Thread-safe: several cells may run at once, as
/// long as the machine has time to spare.
#pragma once

#include <memory>

#include <rrfp/experiment/cell.hpp>

namespace rrfp::wall_clock {

std::unique_ptr<experiment::engine> make_engine();

}  // namespace rrfp::wall_clock
