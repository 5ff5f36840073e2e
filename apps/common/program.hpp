/// The frame of every program: what holds before its first line and after its last.
#pragma once

#include <optional>
#include <string>

#include "exit_code.hpp"

namespace CLI {
class App;
}

namespace rrfp::apps {

/// Runs `work` and returns the exit code of the program.
///
/// Before: descriptors 0 to 2 that are closed are /dev/null, so that no file of ours gets their
/// numbers and the texts meant for them; SIGPIPE and SIGXFSZ are ignored, so that the write fails
/// instead of the process; as many files may be open as the system allows; a file that is cut short
/// while it is mapped into memory is named, with exit code 2. After: what escapes as an exception
/// is told, with exit code 1; so is standard output that could not be written, where all else went
/// well.
int run_program(const char* name, int argc, char** argv, int (*work)(int argc, char** argv));

/// Name given to run_program().
const char* program_name();

/// Tells what the user gave wrong, in one line: the exit code for it.
int refuse(const std::string& message);
/// The same of what the program could not do: an output that cannot be written, say.
int fail(const std::string& message);

/// Reads the arguments. The exit code, if the program is over with it: --help, or wrong arguments.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv);

}  // namespace rrfp::apps
