#include "ucx_nodes.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "../support/slowdown.hpp"

namespace rrfp::testing {

namespace {

using clock = std::chrono::steady_clock;

void put_frame(int to, char kind, const std::string& text) {
  std::string frame{kind};
  const auto size = static_cast<std::uint32_t>(text.size());
  frame.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
  for (std::size_t at = 0; at < frame.size();) {
    const auto n = ::send(to, frame.data() + at, frame.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return;  // the other process has ended, which reap() reports
    at += static_cast<std::size_t>(n);
  }
}

bool read_all(int from, void* into, std::size_t bytes) {
  return bytes == 0 || ::recv(from, into, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

struct frame {
  char kind;
  std::string text;
};

std::optional<frame> get_frame(int from) {
  frame f{};
  std::uint32_t size = 0;
  if (!read_all(from, &f.kind, 1) || !read_all(from, &size, sizeof size)) return std::nullopt;
  f.text.resize(size);
  if (!read_all(from, f.text.data(), size)) return std::nullopt;
  return f;
}

struct child {
  pid_t pid = -1;
  int socket = -1;
  bool connected = true;
  bool is_reaped = false;
  std::optional<std::string> message;
};

[[noreturn]] void run_child(std::uint32_t number, const std::string& tls, int parent,
                            const node_body& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGABRT, SIG_DFL);  // Catch must not handle it
  std::signal(SIGSEGV, SIG_DFL);
  ::setenv("UCX_TLS", tls.c_str(), 1);
  try {
    test_node node{number, tls, parent};
    body(node);
  } catch (const std::exception& e) {
    put_frame(parent, 'e', e.what());
    ::_exit(1);
  }
  ::_exit(0);
}

class supervisor {
 public:
  supervisor(const std::string& tls, const std::vector<node_body>& bodies, bool may_die)
      : may_die_(may_die) {
    for (std::uint32_t i = 0; i < bodies.size(); ++i) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        throw std::runtime_error("socketpair failed");
      child c;
      c.socket = ends[0];
      c.pid = ::fork();
      if (c.pid == 0) {
        for (const auto& other : children_) ::close(other.socket);
        ::close(ends[0]);
        run_child(i, tls, ends[1], bodies[i]);
      }
      ::close(ends[1]);
      children_.push_back(c);
    }
  }
  ~supervisor() {
    for (const auto& c : children_) ::close(c.socket);
  }

  std::string run(std::chrono::seconds limit) {
    const auto end = clock::now() + limit * test::slowdown;
    while (reap() < children_.size()) {
      if (clock::now() > end && problem_.empty()) problem_ = "ran past the limit";
      if (!problem_.empty()) kill_all();
      relay();
    }
    return problem_;
  }

 private:
  std::size_t reap() {
    std::size_t ended = 0;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      auto& c = children_[i];
      int state = 0;
      if (!c.is_reaped && ::waitpid(c.pid, &state, WNOHANG) == c.pid) {
        c.is_reaped = true;
        listen(c, i);  // read its last messages
        const bool succeeded = (WIFEXITED(state) && WEXITSTATUS(state) == 0) ||
                               (WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL && may_die_);
        if (!succeeded && problem_.empty())
          problem_ = "node " + std::to_string(i) +
                     (WIFSIGNALED(state) ? " died of signal " + std::to_string(WTERMSIG(state))
                                         : " ended with an error");
      }
      ended += c.is_reaped ? 1 : 0;
    }
    return ended;
  }

  void kill_all() {
    for (const auto& c : children_)
      if (!c.is_reaped) ::kill(c.pid, SIGKILL);
  }

  void listen(child& c, std::size_t number) {
    while (c.connected) {
      pollfd p{c.socket, POLLIN, 0};
      if (::poll(&p, 1, 0) <= 0) return;
      const auto f = get_frame(c.socket);
      if (!f) {
        c.connected = false;
      } else if (f->kind == 'e') {
        if (problem_.empty()) problem_ = "node " + std::to_string(number) + ": " + f->text;
      } else {
        c.message = f->text;
        return;
      }
    }
  }

  void relay() {
    std::vector<pollfd> all;
    for (const auto& c : children_)
      if (c.connected && !c.message) all.push_back({c.socket, POLLIN, 0});
    ::poll(all.data(), all.size(), 2);
    bool all_sent = true;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i].message) listen(children_[i], i);
      all_sent = all_sent && (children_[i].message || !children_[i].connected);
    }
    if (!all_sent) return;
    for (auto& to : children_) {
      if (!to.message) continue;
      for (const auto& from : children_) put_frame(to.socket, 'g', from.message.value_or(""));
    }
    for (auto& c : children_) c.message.reset();
  }

  const bool may_die_;
  std::vector<child> children_;
  std::string problem_;
};

std::size_t nodes_of_this_test = 0;

}  // namespace

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void expect(bool condition, const std::function<std::string()>& what) {
  if (!condition) throw std::runtime_error(what());
}

actors::ucx_options test_node::options() const {
  actors::ucx_options o;
  o.node = id();
  o.job_token = 0x5eed;
  o.cached_bytes_max = std::size_t{64} << 20;
  return o;
}

std::vector<std::string> test_node::gather(const std::string& message) {
  put_frame(parent_, 'g', message);
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < nodes_of_this_test; ++i) {
    auto f = get_frame(parent_);
    expect(f.has_value(), "the test's parent has ended");
    messages.push_back(std::move(f->text));
  }
  return messages;
}

std::unique_ptr<actors::ucx_transport> test_node::connected(
    actors::ucx_options options, std::function<void(node_id, std::string)> failed) {
  auto opened = actors::ucx_transport::open(std::move(options));
  expect(opened.ok(), opened.ok() ? "" : opened.message());
  auto wire = std::move(opened).value();
  if (failed) wire->on_failure(std::move(failed));
  const auto addresses = gather(wire->address());
  for (std::uint32_t i = 0; i < addresses.size(); ++i) {
    if (i == number_) continue;
    const auto s = wire->connect(node_id{i}, addresses[i]);
    expect(s.ok(), s.ok() ? "" : s.message());
    wire->route({stage_id{i}, rank_id{0}}, node_id{i});
  }
  return wire;
}

std::string run_nodes(const std::string& tls, const std::vector<node_body>& bodies, bool may_die,
                      std::chrono::seconds limit) {
  nodes_of_this_test = bodies.size();
  return supervisor{tls, bodies, may_die}.run(limit);
}

}  // namespace rrfp::testing
