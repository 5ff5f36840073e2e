#pragma once

#include <chrono>
#include <thread>

namespace rrfp::actors {

/// One iteration of a spin loop: frees the core for the other hyperthread.
inline void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// The same for a thread that waits for another thread of this process: after 3 us it yields,
/// because that one may need this core. A thread that waits for another process does not: on a busy
/// machine the kernel then runs others for milliseconds, and even a sleeping thread would be woken
/// sooner.
inline void pause(std::chrono::steady_clock::duration waited) {
  if (waited > std::chrono::microseconds{3}) return std::this_thread::yield();
  pause();
}

}  // namespace rrfp::actors
