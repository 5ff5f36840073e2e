/// The commands of rrfp-node. Each returns the exit code of the program.
#pragma once

#include <string>
#include <vector>

namespace rrfp::apps {

struct command_options {
  std::string job;
  std::vector<std::string> settings;  ///< --set
  std::string json;                   ///< run: a file for the JSON lines
  std::string trace;                  ///< run: a file for the trace
};

/// Trains the job, or each of its variants in turn, and prints the table.
int run_command(const command_options& options);
/// Validates the job and prints what would run.
int check_command(const command_options& options);

}  // namespace rrfp::apps
