#pragma once

namespace rrfp::actors {

/// One iteration of a spin loop: frees the core for the other hyperthread. A spinning thread does
/// not yield, because on a busy machine the kernel then runs others for milliseconds, and even a
/// sleeping thread would be woken sooner. It spins for some microseconds and then sleeps.
inline void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

}  // namespace rrfp::actors
