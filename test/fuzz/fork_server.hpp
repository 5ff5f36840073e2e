/// How the fuzzer asks a held program to run: a size, then the working folder, the files for stdout
/// and stderr, how it ends, and the arguments, each ended by a zero byte. The answer is how it
/// ended.
#pragma once

#include <cstdint>
#include <string_view>

namespace rrfp::fuzz {

/// The descriptor of the socket, as a number.
inline constexpr const char* channel_variable = "RRFP_FUZZ_CHANNEL";
/// Any other word: without the destructors of static objects, libtorch's, which take longer than
/// most runs.
inline constexpr std::string_view whole_end_word = "whole";
/// Of one input: of the processor, which others may use as well, and on the clock.
inline constexpr int cpu_seconds_max = 20;
inline constexpr int seconds_max = 120;
/// Address space of one input: what asks for more is refused, and the machine lives on.
inline constexpr std::uint64_t memory_bytes_max = std::uint64_t{8} << 30;

enum class ending : std::int32_t { code, signal, hung };

struct answer {
  ending how = ending::code;
  std::int32_t number = 0;  ///< the exit code or the signal
};

}  // namespace rrfp::fuzz
