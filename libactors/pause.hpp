#pragma once

#include <chrono>
#include <thread>

namespace rrfp::actors {

/// One turn of a loop that has waited in vain for `waited`. At first it leaves the core's pipeline
/// to the other hyperthread; then it offers the core itself, for who is waited for may need just
/// this one.
inline void pause(std::chrono::steady_clock::duration waited) {
  if (waited > std::chrono::microseconds{3}) return std::this_thread::yield();
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

}  // namespace rrfp::actors
