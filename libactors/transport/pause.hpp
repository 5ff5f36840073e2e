#pragma once

#include <chrono>
#include <thread>

namespace rrfp::actors {

/// One iteration of a spin loop that has waited for `waited`. At first it pauses, which frees the
/// core for the other hyperthread; after 3 us it yields, because the awaited thread may need this
/// core.
inline void pause(std::chrono::steady_clock::duration waited) {
  if (waited > std::chrono::microseconds{3}) return std::this_thread::yield();
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

}  // namespace rrfp::actors
