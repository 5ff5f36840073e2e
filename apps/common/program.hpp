/// Process setup before a program's own code runs, and error handling after it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/base/exit_code.hpp>

namespace CLI {
class App;
}

namespace rrfp::apps {

/// Runs `work` and ends the program with its exit code, as end_program() does.
///
/// Before `work`: closed descriptors 0 to 2 are opened on /dev/null, so that no output file gets
/// their numbers and receives messages; SIGPIPE and SIGXFSZ are ignored, so that the write fails
/// and the process survives; the soft limit of open files is raised to the hard limit; a SIGBUS
/// handler names a mapped file that was truncated, and ends the program with exit code 2. After
/// `work`: an escaped exception is reported, with exit code 1, or 2 if a thread cannot be started.
[[noreturn]] void run_program(const char* name, int argc, char** argv,
                              const std::function<int(int argc, char** argv)>& work);

/// Ends the program with this exit code, or with exit_failed instead of 0 if standard output could
/// not be written. Runs no destructors: those of libtorch take longer than many commands.
[[noreturn]] void end_program(int code);

/// Reports the error in one line; returns the exit code of its kind.
int end_with(const error& why);

/// Parses the arguments. Returns an exit code if the program ends here: after --help, with wrong
/// arguments, or without arguments where a command is required, which prints the help as well.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv);

}  // namespace rrfp::apps
