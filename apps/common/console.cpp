#include "console.hpp"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "program.hpp"

namespace rrfp::apps {

namespace {

std::atomic<bool> output_failed = false;

/// Writes all of `text`. Returns 0, or the errno of the failed write.
int write_all(int descriptor, std::string_view text) {
  static std::mutex mutex;
  const std::lock_guard lock{mutex};
  while (!text.empty()) {
    const auto wrote = ::write(descriptor, text.data(), text.size());
    if (wrote > 0) {
      text.remove_prefix(static_cast<std::size_t>(wrote));
      continue;
    }
    if (wrote == 0) return EIO;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    // The parent process may have made the descriptor non-blocking.
    pollfd writable{descriptor, POLLOUT, 0};
    ::poll(&writable, 1, -1);
  }
  return 0;
}

}  // namespace

void write_error(std::string_view text) {
  // A failure to write to standard error cannot be reported anywhere.
  static_cast<void>(write_all(STDERR_FILENO, text));
}

void write_out(std::string_view text) {
  const int failure = write_all(STDOUT_FILENO, text);
  if (failure == 0 || failure == EPIPE || output_failed.exchange(true)) return;
  complain("standard output: cannot write: {}", std::strerror(failure));
}

bool has_output_failed() { return output_failed; }

}  // namespace rrfp::apps
