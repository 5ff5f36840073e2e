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

/// All of `text`, or the errno of what hindered it.
int write_all(int descriptor, std::string_view text) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock{one_at_a_time};
  while (!text.empty()) {
    const auto wrote = ::write(descriptor, text.data(), text.size());
    if (wrote > 0) {
      text.remove_prefix(static_cast<std::size_t>(wrote));
      continue;
    }
    if (wrote == 0) return EIO;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    // Whoever gave the descriptor may have made it one that does not wait.
    pollfd room{descriptor, POLLOUT, 0};
    ::poll(&room, 1, -1);
  }
  return 0;
}

}  // namespace

void write_error(std::string_view text) {
  // If this cannot be written, there is nobody to tell.
  static_cast<void>(write_all(STDERR_FILENO, text));
}

void write_out(std::string_view text) {
  const int failure = write_all(STDOUT_FILENO, text);
  if (failure == 0 || failure == EPIPE || output_failed.exchange(true)) return;
  print_error("{}: standard output: cannot write: {}\n", program_name(), std::strerror(failure));
}

bool has_output_failed() { return output_failed; }

}  // namespace rrfp::apps
