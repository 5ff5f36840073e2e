/// How much longer than otherwise a test waits under a sanitizer before it fails; as in
/// rrfp_add_test.
#pragma once

namespace rrfp::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int slowdown = 4;
#else
constexpr int slowdown = 1;
#endif

}  // namespace rrfp::test
