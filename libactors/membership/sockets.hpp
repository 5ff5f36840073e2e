/// POSIX sockets without their sharp edges: owned, close-on-exec, non-blocking, errors as text.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>

#include <rrfp/schedule/result.hpp>

namespace rrfp::actors::control {

class file_descriptor {
 public:
  file_descriptor() = default;
  explicit file_descriptor(int fd) : fd_(fd) {}
  file_descriptor(file_descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept;
  ~file_descriptor() { reset(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

/// Wakes a poll() from another thread.
class wake_event {
 public:
  wake_event();
  int fd() const { return fd_.get(); }
  void set() const;
  void clear() const;

 private:
  file_descriptor fd_;
};

struct address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  std::string host() const;  ///< in figures
  std::string text() const;  ///< host:port
  std::uint16_t port() const;
  bool is_loopback() const;
};

/// The addresses of a host, found by a thread of its own: a name server that does not answer must
/// not hold up an interrupt, and getaddrinfo() cannot be stopped.
class name_lookup {
 public:
  name_lookup(const std::string& host, std::uint16_t port);
  /// Readable when the answer is there.
  int fd() const;
  bool done() const;
  /// When done.
  const result<std::vector<address>>& answer() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

/// The other end of a connected socket, this end of any.
address peer_of(int fd);
address own_of(int fd);

result<file_descriptor> listen_at(const address& at);
/// A connected socket of a listener; nothing if there is none to be had now.
std::optional<file_descriptor> accept_from(int listener);
/// A socket that connects, or has already; `connect_error` tells when it is writable.
result<file_descriptor> begin_connect(const address& to);
/// errno of a connect, 0 if it is through.
int connect_error(int fd);
/// No delay for small frames, no blocking, closed on exec.
void prepare(int fd);

}  // namespace rrfp::actors::control
