#include "life_line.hpp"

#include <cerrno>

#include <fcntl.h>
#include <poll.h>

namespace rrfp::actors::control {

namespace {

void set_port(address& at, std::uint16_t port) {
  if (at.storage.ss_family == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(at.storage).sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in&>(at.storage).sin_port = htons(port);
}

/// Whether `fd` is ready within `limit`.
bool is_ready(int fd, short events, std::chrono::milliseconds limit) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, static_cast<int>(limit.count())) > 0;
}

/// The same, unless `stop` comes first.
bool is_ready(int fd, short events, std::chrono::milliseconds limit, const std::stop_token& stop) {
  constexpr std::chrono::milliseconds turn{20};
  const auto until = std::chrono::steady_clock::now() + limit;
  do
    if (is_ready(fd, events, turn)) return true;
  while (!stop.stop_requested() && std::chrono::steady_clock::now() < until);
  return false;
}

}  // namespace

result<std::unique_ptr<life_line>> life_line::open(address here) {
  set_port(here, 0);
  auto listener = listen_at(here);
  if (!listener) return listener.failure();
  return std::unique_ptr<life_line>{new life_line{*std::move(listener)}};
}

life_line::life_line(file_descriptor listener)
    : listener_(std::move(listener)), thread_([this] { close_connections(); }) {}

life_line::~life_line() {
  {
    const std::lock_guard lock{mutex_};
    ends_ = true;
  }
  wake_.set();
  thread_.join();
}

void life_line::close_connections() {
  // So long a connection waits, because this process may be about to lead. This also limits the
  // attempts to accept one without free descriptors.
  constexpr std::chrono::milliseconds delay{200};
  for (;;) {
    pollfd both[] = {{wake_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock{mutex_};
      if (ends_) return;
      if (is_served_) both[1].fd = -1;
    }
    ::poll(both, 2, -1);
    if (both[0].revents != 0) wake_.clear();
    if (both[1].revents == 0 || is_ready(wake_.fd(), POLLIN, delay)) continue;
    const std::lock_guard lock{mutex_};
    while (!is_served_ && !ends_ && accept_from(listener_.get())) continue;
  }
}

file_descriptor life_line::serve() {
  {
    const std::lock_guard lock{mutex_};
    is_served_ = true;
  }
  wake_.set();
  return file_descriptor{::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0)};
}

void life_line::rest() {
  {
    const std::lock_guard lock{mutex_};
    is_served_ = false;
  }
  wake_.set();
}

bool is_gone(const std::string& host, std::uint16_t port, std::chrono::milliseconds silent_max,
             const std::stop_token& stop) {
  const auto at = numeric_address(host, port);
  if (!at) return false;
  const auto to = begin_connect(*at);
  if (!to) return to.failure().kind == error_kind::node_lost;
  if (!is_ready(to->get(), POLLOUT, silent_max, stop)) return false;
  const int failed = connect_error(to->get());
  if (failed != 0) return failed == ECONNREFUSED;
  // A leader waits for the first bytes, and refuses these.
  constexpr char greeting[] = "rrfp lives";
  (void)::send(to->get(), greeting, sizeof greeting - 1, MSG_NOSIGNAL);
  return !is_ready(to->get(), POLLIN, silent_max, stop) && !stop.stop_requested();
}

}  // namespace rrfp::actors::control
