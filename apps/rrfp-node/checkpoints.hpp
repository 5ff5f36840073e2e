/// The checkpoints of a run: where it resumes, and the lines that report it.
#pragma once

#include <optional>
#include <string>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::apps {

/// "checkpoint: step 42 saved, 3 files, 12.0 MiB, 0.8 ms copy, 35 ms in the background", or the
/// reason of the failure.
std::string line_of(const actors::checkpoint_report& r);

/// For `check`: describes what a run would do, and changes nothing. Empty without
/// checkpoint.dir.
result<std::string> describe_checkpoints(const job::job& j,
                                         const std::optional<actors::checkpoint_setup>& setup);

/// "resumes after step 42 from DIR/step-00000042, written at 2026-01-31T12:00:00Z"
std::string line_of(const checkpoint::found_checkpoint& from);

}  // namespace rrfp::apps
