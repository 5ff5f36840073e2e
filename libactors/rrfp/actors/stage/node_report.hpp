/// The hang report of one node: who waits for what, as seen from this node.
#pragma once

#include <map>
#include <string>

#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/control/run_context.hpp>

namespace rrfp::actors {

/// `stages`: the texts of the stages hosted here. Ends with a line break.
std::string node_report(const run_context& context, const write_report& request,
                        const std::map<stage_key, std::string>& stages);

}  // namespace rrfp::actors
