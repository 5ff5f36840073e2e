/// Writes hang reports: complete into a file, shortened to stderr.
#pragma once

#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>

#include "commands.hpp"

namespace rrfp::apps {

/// The folder for hang reports: that of --reports, else that of the --json file; empty: none.
/// Error: the folder does not exist or is not writable.
result<std::string> reports_folder(const command_options& options);

/// Writes FOLDER/rrfp-report-node-N-TIME.txt, and to stderr the same with only the last few
/// decisions of each stage. Without a folder, or if the file cannot be written, stderr gets
/// everything.
void write_hang_report(const std::string& folder, node_id node, const std::string& report);

}  // namespace rrfp::apps
