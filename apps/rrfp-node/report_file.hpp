/// Where reports of who waits for what go: to stderr, and whole into a file of their own.
#pragma once

#include <string>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

#include "commands.hpp"

namespace rrfp::apps {

/// The folder for reports: what --reports says, else where the --json file is; empty: there is
/// none. Error: no such folder, or nothing can be made in it.
result<std::string> reports_folder(const command_options& options);

/// Writes FOLDER/rrfp-report-node-N-TIME.txt and tells stderr the same, but for all decisions but
/// the last few if they are in the file. Without a folder stderr gets everything.
void leave_report(const std::string& folder, node_id node, const std::string& report);

}  // namespace rrfp::apps
