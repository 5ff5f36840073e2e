/// Transcripts of the job core as text: a line for each event, then the actions, indented, and the
/// phase if it changed.
///
///   job stages 2 steps 2 save_every 1 save_ms 1000     a new core; see options_of()
///   at 1200                                                    milliseconds since the run began
///   start
///     begin_step 1
///     -> stepping
///   stage_ended 1 0.0          step 1, replica 0, stage 0
///   stage_ended e1 0.0         evaluation 1
///   # a comment
#pragma once

#include <string>

#include <rrfp/core/job_core.hpp>

namespace rrfp::testing {

std::string to_line(const job_action::any& a);

/// The text with the actions that the core returns; lines that start with a space are not read. A
/// line that is not an event is answered with what was expected.
std::string replayed(const std::string& text);

}  // namespace rrfp::testing
