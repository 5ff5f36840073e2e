/// The end of a run, as messages and exit codes report it.
#pragma once

#include <string>
#include <string_view>

#include <rrfp/actors/session.hpp>

namespace rrfp::apps {

/// The name in the JSON lines; "?" for an invalid value.
std::string_view name(actors::ending how);
int exit_code_of(actors::ending how);
/// Why the run failed or was interrupted; empty for ending::done only. `knows_steps`: false on all
/// nodes but node 0, which alone counts the steps.
std::string cause_of(const actors::run_result& r, bool knows_steps = true);

}  // namespace rrfp::apps
