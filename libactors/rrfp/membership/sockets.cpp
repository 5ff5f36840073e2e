#include "sockets.hpp"

#include <cerrno>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>

#include <rrfp/base/check.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <unistd.h>

namespace rrfp::actors::control {

file_descriptor& file_descriptor::operator=(file_descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void file_descriptor::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

wake_event::wake_event() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  RRFP_CHECK(fd_.open(), "eventfd() must not run out of file descriptors");
}

void wake_event::set() const {
  const std::uint64_t one = 1;
  while (::write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void wake_event::clear() const {
  std::uint64_t sum = 0;
  while (::read(fd_.get(), &sum, sizeof sum) < 0 && errno == EINTR) {
  }
}

std::string address::host() const {
  char text[NI_MAXHOST] = "";
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, text, sizeof text, nullptr,
                    0, NI_NUMERICHOST) != 0)
    return "unknown address";
  return text;
}

std::uint16_t address::port() const {
  if (storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  if (storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return 0;
}

std::string address::text() const {
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host(), port())
                                       : fmt::format("{}:{}", host(), port());
}

bool address::is_loopback() const {
  if (storage.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
  if (storage.ss_family != AF_INET6) return false;
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&in6) || (IN6_IS_ADDR_V4MAPPED(&in6) && in6.s6_addr[12] == 127);
}

namespace {

result<std::vector<address>> look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed != 0)
    return error{fmt::format("host '{}': {}", host, ::gai_strerror(failed)), error_kind::failed};
  std::vector<address> found;
  for (const auto* at = list; at != nullptr; at = at->ai_next) {
    address a;
    std::memcpy(&a.storage, at->ai_addr, at->ai_addrlen);
    a.size = at->ai_addrlen;
    found.push_back(a);
  }
  ::freeaddrinfo(list);
  return found;
}

}  // namespace

name_lookup::name_lookup(const std::string& host, std::uint16_t port)
    : state_(std::make_shared<state>()) {
  if (auto numeric = look_up(host, port, AI_NUMERICHOST); numeric.ok()) {
    state_->answer = std::move(numeric);
    state_->done = true;
    state_->ready.set();
    return;
  }
  std::thread{[state = state_, host, port] {
    state->answer = look_up(host, port, 0);
    state->done = true;
    state->ready.set();
  }}.detach();
}

result<address> numeric_address(const std::string& host, std::uint16_t port) {
  const auto found = look_up(host, port, AI_NUMERICHOST);
  if (!found) return found.failure();
  return found->front();
}

namespace {

address address_from(int fd, int (*function)(int, sockaddr*, socklen_t*)) {
  address a;
  a.size = sizeof a.storage;
  if (function(fd, reinterpret_cast<sockaddr*>(&a.storage), &a.size) != 0) return {};
  return a;
}

}  // namespace

address peer_address(int fd) { return address_from(fd, ::getpeername); }
address local_address(int fd) { return address_from(fd, ::getsockname); }

void prepare(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

result<file_descriptor> listen_at(const address& at) {
  file_descriptor fd{::socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int on = 1;
  // Otherwise closed connections still hold the port of a job that restarts at once.
  if (fd.open()) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd.open() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int why = errno;
    return error{fmt::format("cannot listen on {}: {}", at.text(), std::strerror(why)),
                 why == EADDRINUSE      ? error_kind::node_lost
                 : why == EADDRNOTAVAIL ? error_kind::failed
                                        : error_kind::bad_input};
  }
  prepare(fd.get());
  return fd;
}

std::optional<file_descriptor> accept_from(int listener) {
  file_descriptor fd{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!fd.open()) return std::nullopt;
  prepare(fd.get());
  return fd;
}

result<file_descriptor> begin_connect(const address& to) {
  file_descriptor fd{::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!fd.open()) return error{fmt::format("cannot create a socket: {}", std::strerror(errno))};
  prepare(fd.get());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0 &&
      errno != EINPROGRESS) {
    const int why = errno;
    return error{fmt::format("{}: {}", to.text(), std::strerror(why)),
                 why == ECONNREFUSED ? error_kind::node_lost : error_kind::failed};
  }
  return fd;
}

int connect_error(int fd) {
  int failed = 0;
  socklen_t size = sizeof failed;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return errno;
  return failed;
}

}  // namespace rrfp::actors::control
