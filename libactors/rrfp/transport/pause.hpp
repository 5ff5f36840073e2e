#pragma once

#include <chrono>
#include <thread>

#include <rrfp/tp_coord/wait_word.hpp>

namespace rrfp::actors {

/// One iteration of a spin loop of a thread that waits for another thread of this process: after
/// 3 us it yields, because that one may need this core. A thread that waits for another process
/// calls tp_coord::relax() alone: on a busy machine the kernel would run others for milliseconds,
/// and even a sleeping thread would be woken sooner.
inline void pause(std::chrono::steady_clock::duration waited) {
  if (waited > std::chrono::microseconds{3}) return std::this_thread::yield();
  tp_coord::relax();
}

}  // namespace rrfp::actors
