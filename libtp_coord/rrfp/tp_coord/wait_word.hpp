/// std::atomic::wait with a time limit, which C++20 lacks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rrfp::tp_coord {

/// Sleeps while `word` equals `old`, for at most `limit`; may return early. Linux: a futex.
void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t old,
                 std::chrono::nanoseconds limit);
void wake_all(std::atomic<std::uint32_t>& word);

/// A hint to the processor that this is a spin loop: frees the core for the other hyperthread.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace rrfp::tp_coord
