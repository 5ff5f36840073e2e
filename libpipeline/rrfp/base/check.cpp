#include <rrfp/base/check.hpp>

#include <cstdio>
#include <cstdlib>

namespace rrfp {

void check_failed(const char* expression, const char* file, int line, const char* what) noexcept {
  std::fprintf(stderr, "rrfp: broken invariant: %s (%s) at %s:%d\n", what, expression, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace rrfp
