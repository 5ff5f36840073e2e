/// Nodes of a job as threads of the test, and raw connections to node 0.
#pragma once

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <catch2/catch.hpp>

#include <rrfp/membership/channel.hpp>
#include <rrfp/membership/membership.hpp>

#include "eventually.hpp"
#include "program.hpp"

#include <poll.h>
#include <unistd.h>

namespace rrfp::actors::testing {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;
using rrfp::test::eventually;
using joined = result<std::unique_ptr<membership>>;

/// Lines that other threads add.
class lines {
 public:
  void add(std::string line) {
    const std::lock_guard lock{mutex_};
    all_.push_back(std::move(line));
  }
  std::vector<std::string> all() const {
    const std::lock_guard lock{mutex_};
    return all_;
  }
  std::size_t count() const { return all().size(); }
  bool any_with(const std::string& text) const {
    for (const auto& line : all())
      if (line.find(text) != std::string::npos) return true;
    return false;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
};

/// Writes a key file with these bytes and this mode.
inline std::string write_key(const std::string& file, const std::string& bytes,
                             mode_t mode = 0600) {
  std::ofstream{file} << bytes;
  ::chmod(file.c_str(), mode);
  return file;
}

inline const std::string good_key = "0123456789abcdef0123456789abcdef";

/// A job whose rendezvous is a free port of this machine.
class job {
 public:
  explicit job(std::uint32_t nodes) : nodes_(nodes), listening_(*listen_on_loopback()) {}
  ~job() {
    if (!given_) ::close(listening_.fd);
  }

  std::uint16_t port() const { return listening_.port; }
  int listen_fd() {
    given_ = true;
    return listening_.fd;
  }
  void use_key(const std::string& file) { key_file_ = file; }
  /// good_key. A job needs a key file if its nodes reach node 0 at different ports.
  void use_good_key() { use_key(write_key(folder_ / "key", good_key)); }

  /// The refusals that node 0 reported.
  const lines& refusals() const { return refusals_; }

  membership_options options(std::uint32_t node) {
    membership_options o;
    o.nodes = nodes_;
    o.node = node_id{node};
    o.rendezvous_port = port();
    if (node == 0) {
      o.listen_fd = listen_fd();
      o.on_refused = [this](std::string line) { refusals_.add(std::move(line)); };
    }
    o.key_file = key_file_;
    o.job_id = "a job";
    o.job_hash = 0x1234;
    o.version = "0.1.0";
    o.vector_instructions = "AVX512";
    o.description = "stage " + std::to_string(node);
    o.join_timeout = 20s;
    o.node_timeout = 1500ms;
    return o;
  }

 private:
  const std::uint32_t nodes_;
  const listening_socket listening_;
  bool given_ = false;
  const test::scratch_folder folder_;
  std::string key_file_;
  lines refusals_;
};

inline std::future<joined> begin_join(membership_options options) {
  return std::async(std::launch::async, [options] { return membership::join(options); });
}

/// An exchange in which each node gets the bytes of all, in the order of their numbers.
inline result<std::string> tell_all(membership& node, std::string bytes,
                                    std::chrono::milliseconds limit) {
  return node.exchange(std::move(bytes), limit, [](const std::vector<std::string>& all) {
    std::string together;
    for (const auto& one : all) together += one;
    return std::vector{together};
  });
}

/// Joins all nodes of a job, in order of their numbers.
inline std::vector<std::unique_ptr<membership>> join_all(job& j, std::uint32_t nodes) {
  std::vector<std::future<joined>> joining;
  for (std::uint32_t i = 0; i < nodes; ++i) joining.push_back(begin_join(j.options(i)));
  std::vector<std::unique_ptr<membership>> all;
  for (auto& one : joining) {
    auto got = one.get();
    INFO((got.ok() ? std::string{} : got.message()));
    REQUIRE(got.ok());
    all.push_back(*std::move(got));
  }
  return all;
}

inline void leave_all(std::vector<std::unique_ptr<membership>>& nodes) {
  std::vector<std::thread> leaving;
  for (auto& node : nodes) leaving.emplace_back([&] { node->leave(); });
  for (auto& one : leaving) one.join();
}

/// A socket that is connected to this port.
inline int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    throw std::runtime_error("connect() failed");
  return fd;
}

/// A connection on which the test sends raw bytes.
class raw_connection {
 public:
  explicit raw_connection(std::uint16_t port) : fd_(connect_to(port)) {}
  raw_connection(const raw_connection&) = delete;
  raw_connection& operator=(const raw_connection&) = delete;
  ~raw_connection() { ::close(fd_); }

  /// False if the connection has ended.
  bool send(std::string_view bytes) const {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void end_writing() const { ::shutdown(fd_, SHUT_WR); }
  /// The next frame in clear text; nothing at the end or after 8 s.
  std::optional<control::frame> next() {
    const auto until = clock::now() + 8s;
    for (;;) {
      auto f = reader_.next();
      if (!f) return std::nullopt;
      if (f->has_value()) return **f;
      char bytes[4096];
      pollfd here{fd_, POLLIN, 0};
      if (::poll(&here, 1, 50) == 0 && clock::now() < until) continue;
      const auto got = ::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got <= 0) return std::nullopt;
      reader_.append({bytes, static_cast<std::size_t>(got)});
    }
  }
  /// The reason of a refusal; empty if there is none.
  std::string refusal() {
    for (auto f = next(); f; f = next())
      if (f->type == control::refuse::type)
        return decoded<control::refuse>(f->payload).value_or(control::refuse{"?"}).reason;
    return {};
  }

 private:
  const int fd_;
  control::frame_reader reader_;
};

inline control::secret psk_of(const std::string& key) {
  return control::derive_psk(control::secret{{key.begin(), key.end()}});
}

/// The side of a node of one connection, which sends what the test wants.
class tls_connection {
 public:
  tls_connection(int fd, const std::string& key, std::uint32_t node) : io_(nonblocking(fd)) {
    io_.begin_tls(context_, psk_of(key), node_id{node});
    (void)io_.flush();
  }

  void send(control::frame f) { io_.out().add_urgent(std::move(f)); }
  /// The next frame; nothing at the end or after 8 s.
  std::optional<control::frame> next() {
    for (const auto until = clock::now() + 8s; clock::now() < until;) {
      auto f = io_.in().next();
      if (f && f->has_value()) return **f;
      if (!f || end_ != control::tls::end::none || !io_.flush()) return std::nullopt;
      auto here = io_.polled();
      ::poll(&here, 1, 50);
      end_ = io_.receive().ended;
    }
    return std::nullopt;
  }
  /// The reason of a refusal of this frame; empty if there is none.
  std::string refusal_of(control::frame f) {
    send(std::move(f));
    const auto answer = next();
    if (!answer || answer->type != control::refuse::type) return {};
    return decoded<control::refuse>(answer->payload).value_or(control::refuse{"?"}).reason;
  }
  control::tls::end ended() const { return end_; }

 private:
  static control::file_descriptor nonblocking(int fd) {
    control::prepare(fd);
    return control::file_descriptor{fd};
  }

  const control::tls_context context_{control::tls_context::side::node};
  control::channel io_;
  control::tls::end end_ = control::tls::end::none;
};

/// The first bytes of a node with this key.
inline std::string client_hello(const std::string& key) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair()");
  const tls_connection node{ends[0], key, 1};
  char bytes[4096];
  const auto got = ::recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT);
  ::close(ends[1]);
  return {bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

/// A relay between nodes and node 0 that records what the nodes send and can stop forwarding.
class relay {
 public:
  explicit relay(std::uint16_t to) : to_(to), listening_(*listen_on_loopback()) {
    thread_ = std::thread{[this] { run(); }};
  }
  ~relay() {
    stop_ = true;
    thread_.join();
    for (const auto& p : pairs_) {
      ::close(p.node);
      ::close(p.node_0);
    }
    ::close(listening_.fd);
  }

  std::uint16_t port() const { return listening_.port; }
  /// Stops forwarding in both directions; the connections stay open.
  void cut() { cut_ = true; }
  /// The bytes that nodes have sent so far, over all connections.
  std::string said_by_nodes() const {
    const std::lock_guard lock{mutex_};
    return said_;
  }
  std::size_t passed_to_nodes() const { return to_nodes_; }
  /// Adds bytes to the stream to the node, as an attacker on the network could.
  void inject(const std::string& bytes) {
    const std::lock_guard lock{mutex_};
    injection_ = bytes;
  }

 private:
  struct ends {
    int node;
    int node_0;
  };

  void run() {
    while (!stop_) {
      std::vector<pollfd> polled{{listening_.fd, POLLIN, 0}};
      for (const auto& p : pairs_) {
        polled.push_back({cut_ ? -1 : p.node, POLLIN, 0});
        polled.push_back({cut_ ? -1 : p.node_0, POLLIN, 0});
      }
      ::poll(polled.data(), polled.size(), 10);
      for (std::size_t i = 1; i < polled.size(); ++i) {
        const auto& p = pairs_[(i - 1) / 2];
        if (polled[i].revents != 0)
          pass(polled[i].fd, polled[i].fd == p.node ? p.node_0 : p.node, polled[i].fd == p.node);
      }
      if (polled[0].revents != 0) accept_one();
      const std::lock_guard lock{mutex_};
      if (!injection_.empty() && !pairs_.empty()) {
        (void)::send(pairs_.back().node, injection_.data(), injection_.size(), MSG_NOSIGNAL);
        injection_.clear();
      }
    }
  }
  void accept_one() {
    const int node = ::accept(listening_.fd, nullptr, nullptr);
    if (node < 0) return;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(to_);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int node_0 = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)::connect(node_0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    pairs_.push_back({node, node_0});
  }
  void pass(int from, int to, bool from_node) {
    char bytes[4096];
    const auto got = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) {
      ::shutdown(to, SHUT_WR);
      return;
    }
    (void)::send(to, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL);
    const std::lock_guard lock{mutex_};
    if (from_node)
      said_.append(bytes, static_cast<std::size_t>(got));
    else
      to_nodes_ += static_cast<std::size_t>(got);
  }

  const std::uint16_t to_;
  const listening_socket listening_;
  std::vector<ends> pairs_;
  mutable std::mutex mutex_;
  std::string said_;
  std::string injection_;
  std::atomic<std::size_t> to_nodes_ = 0;
  std::atomic<bool> cut_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace rrfp::actors::testing
