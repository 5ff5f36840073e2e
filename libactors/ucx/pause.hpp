#pragma once

namespace rrfp::actors::ucx {

/// One turn of a loop that waits for another core: leaves the pipeline to the other hyperthread.
inline void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

}  // namespace rrfp::actors::ucx
