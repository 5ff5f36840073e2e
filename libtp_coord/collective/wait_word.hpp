/// std::atomic::wait with a limit, which C++20 lacks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rrfp::tp_coord {

/// Sleeps while `word` is `old`, at most for `limit`; may also return early. Linux: a futex.
void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t old,
                 std::chrono::nanoseconds limit);
void wake_all(std::atomic<std::uint32_t>& word);

/// Tells the processor that this is a spin.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace rrfp::tp_coord
