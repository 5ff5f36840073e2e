/// The checkpoints of a run: what it goes on from, and what is said of it.
#pragma once

#include <optional>
#include <string>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/job/job.hpp>

#include "training.hpp"

namespace rrfp::apps {

/// Opens the folder of checkpoints on the node that leads, chooses what the run goes on from, the
/// same on every node, and puts both into `setup`. Says what is to be said of it. Without
/// checkpoint.dir nothing happens. The end, if there is one, is the same on all nodes.
std::optional<actors::end_cause> prepare_checkpoints(const job::job& j, const node_seat& seat,
                                                     actors::session_setup& setup);

/// "checkpoint: step 42 saved, 3 files, 12.0 MiB, 0.8 ms copy, 35 ms in the background", or why
/// not.
std::string line_of(const actors::checkpoint_report& r);

/// For `check`: what prepare_checkpoints() would find. Nothing is changed. Empty without
/// checkpoint.dir.
result<std::string> describe_checkpoints(const job::job& j,
                                         const std::optional<actors::checkpoint_setup>& setup);

/// "goes on after step 42 from DIR/step-00000042, of 2026-01-31T12:00:00Z"
std::string line_of(const checkpoint::found_checkpoint& from);

}  // namespace rrfp::apps
