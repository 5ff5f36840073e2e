/// The protocol between the fuzzer and the fork server. A request is its size, then the working
/// folder, the files for stdout and stderr, the kind of exit, and the arguments, each ended by a
/// zero byte. The answer is how the program ended.
#pragma once

#include <cstdint>
#include <string_view>

namespace rrfp::fuzz {

/// The environment variable with the number of the socket.
inline constexpr const char* channel_variable = "RRFP_FUZZ_CHANNEL";
/// The kind of exit that runs the destructors of static objects. Any other word skips them: those
/// of libtorch take longer than most runs.
inline constexpr std::string_view whole_end_word = "whole";
/// Limits for one input: CPU time, and wall-clock time, because the machine may have other work.
inline constexpr int cpu_seconds_max = 20;
inline constexpr int seconds_max = 120;
/// Address space for one input, so that a huge allocation fails without harm to the machine.
inline constexpr std::uint64_t memory_bytes_max = std::uint64_t{8} << 30;

enum class ending : std::int32_t { code, signal, hung };

struct answer {
  ending how = ending::code;
  std::int32_t number = 0;  ///< the exit code or the signal
};

}  // namespace rrfp::fuzz
