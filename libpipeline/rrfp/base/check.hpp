/// Assertions that stay on in release builds. A broken invariant is a programmer's error; a core
/// that continued after one would train on garbage.
#pragma once

namespace rrfp {

/// Prints `what`, the source location and the failed expression to stderr, then aborts.
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const char* what) noexcept;

}  // namespace rrfp

#define RRFP_CHECK(expression, what)                    \
  (static_cast<bool>(expression) ? static_cast<void>(0) \
                                 : ::rrfp::check_failed(#expression, __FILE__, __LINE__, what))
