/// POSIX sockets that are owned, close-on-exec and non-blocking, with errors as text.
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

#include <rrfp/base/result.hpp>

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

  std::string host() const;  ///< in numeric form
  std::string text() const;  ///< host:port
  std::uint16_t port() const;
  bool is_loopback() const;
};

/// Looks up the addresses of a host on another thread, because getaddrinfo() cannot be stopped and
/// a slow name server must not delay an interrupt.
class name_lookup {
 public:
  name_lookup(const std::string& host, std::uint16_t port);
  /// Readable when the lookup is done.
  int fd() const { return state_->ready.fd(); }
  bool done() const { return state_->done; }
  /// Valid when done().
  const result<std::vector<address>>& answer() const { return state_->answer; }

 private:
  /// Shared with the thread, which may outlive this.
  struct state {
    wake_event ready;
    std::atomic<bool> done = false;
    result<std::vector<address>> answer = error{"the lookup has not finished"};
  };
  std::shared_ptr<state> state_;
};

/// The address of a host in numeric form. Error: it is in no such form.
result<address> numeric_address(const std::string& host, std::uint16_t port);

/// The remote address of a connected socket, and the local address of any socket.
address peer_address(int fd);
address local_address(int fd);

/// Error: node_lost if another process has the port, failed if this machine does not have the
/// address.
result<file_descriptor> listen_at(const address& at);
/// The next connection of a listener; empty if none is pending.
std::optional<file_descriptor> accept_from(int listener);
/// A socket that is connecting or connected; once it is writable, ask `connect_error`. Error:
/// node_lost if nobody listens there.
result<file_descriptor> begin_connect(const address& to);
/// The errno of the connect, 0 if it succeeded.
int connect_error(int fd);
/// Sets TCP_NODELAY, non-blocking mode and close-on-exec.
void prepare(int fd);

}  // namespace rrfp::actors::control
