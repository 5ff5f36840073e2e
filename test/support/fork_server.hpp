/// The protocol of the fork server. A request is its size, then words, each ended by a zero byte:
/// the working folder, the files for stdout and stderr, the kind of start, for a start by a parent
/// the environment and an empty word, and the arguments. The answer is how the program ended, or
/// the process id of the program that a parent has started.
#pragma once

#include <cstdint>
#include <string_view>

namespace rrfp::test {

/// The environment variable with the number of the socket.
inline constexpr const char* channel_variable = "RRFP_FORK_SERVER_CHANNEL";
/// The kinds of start. A fuzzer's programs have limits, and the server waits for their end; those
/// of a parent, `parent_prefix` and the parent's process id, become its children.
inline constexpr std::string_view fuzz_word = "fuzz";
/// Also runs the destructors of static objects: those of libtorch take longer than most runs.
inline constexpr std::string_view whole_fuzz_word = "whole fuzz";
inline constexpr std::string_view parent_prefix = "parent ";

/// Limits for one input of a fuzzer: CPU time, and wall-clock time, because the machine may have
/// other work.
inline constexpr int cpu_seconds_max = 20;
inline constexpr int seconds_max = 120;
/// Address space for one input, so that a huge allocation fails without harm to the machine.
inline constexpr std::uint64_t memory_bytes_max = std::uint64_t{8} << 30;

enum class ending : std::int32_t { code, signal, hung };

struct answer {
  ending how = ending::code;
  std::int32_t number = 0;  ///< the exit code or the signal
};

}  // namespace rrfp::test
