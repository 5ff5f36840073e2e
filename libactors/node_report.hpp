/// The report of one node: who waits for what, as far as it can be seen from here.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "messages.hpp"
#include "run_context.hpp"

namespace rrfp::actors {

/// `stages` is what the stages that are hosted here say. Ends with a line break.
std::string node_report(const run_context& context, const write_report& what,
                        const std::map<std::pair<replica_id, stage_id>, std::string>& stages);

}  // namespace rrfp::actors
