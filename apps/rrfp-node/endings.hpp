/// What a user and a script hear of how a run ended.
#pragma once

#include <string>
#include <string_view>

#include <rrfp/actors/session.hpp>

namespace rrfp::apps {

/// As the JSON lines have it; "?" of what is no ending.
std::string_view name(actors::ending how);
int exit_code_of(actors::ending how);
/// Why the run did not end well; empty for ending::done alone. On other nodes than 0 the steps of
/// the run are not known.
std::string cause_of(const actors::run_result& r, bool knows_steps = true);

}  // namespace rrfp::apps
