#include "metrics_server.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include <CivetServer.h>
#include <fmt/format.h>

#include <rrfp/base/parse_number.hpp>
#include <rrfp/metrics/prometheus_text.hpp>

#include "../common/console.hpp"

namespace rrfp::apps {

namespace {

/// A scrape takes milliseconds, but a client that does not finish its request occupies a thread. A
/// probe, which Kubernetes gives one second by default, must not wait for such clients. Idle
/// threads sleep.
constexpr const char* threads = "32";
/// Time for a client to finish its request, and to receive the response, in milliseconds.
constexpr const char* request_ms_max = "2000";
/// Between two looks at an address that another process has.
constexpr std::chrono::milliseconds retry_interval{200};

struct reply {
  int code = 0;
  const char* reason = "";
  const char* type = "";
  std::string body;
};

/// Renders a page about the current run.
using page = std::function<reply()>;

page metrics_page(node_id node, const metrics::board& board) {
  return [node, &board]() -> reply {
    const auto run = board.current();
    return {200, "OK", metrics::prometheus_content_type,
            metrics::prometheus_text(node, RRFP_VERSION, run.get(), metrics::steady_now())};
  };
}

page health_page(const metrics::board& board) {
  return [&board]() -> reply {
    const auto run = board.current();
    const auto health = metrics::health_of(run.get(), metrics::steady_now());
    return {health.good ? 200 : 503, health.good ? "OK" : "Service Unavailable",
            "text/plain; charset=utf-8", health.why + "\n"};
  };
}

/// Answers GET, and HEAD, which is GET without the body; refuses all other methods. `requested` is
/// the page.
int handle_request(mg_connection* connection, void* requested) {
  const std::string_view method = mg_get_request_info(connection)->request_method;
  const bool is_head = method == "HEAD";
  const bool is_read = is_head || method == "GET";
  const auto r = is_read ? (*static_cast<const page*>(requested))()
                         : reply{405, "Method Not Allowed", "text/plain; charset=utf-8",
                                 "expected GET or HEAD\n"};
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            r.code, r.reason, r.type, r.body.size(), is_read ? "" : "Allow: GET, HEAD\r\n");
  if (!is_head) mg_write(connection, r.body.data(), r.body.size());
  return r.code;
}

/// CivetServer's own handlers answer 404 to unsupported methods.
class server final : public CivetServer {
 public:
  using CivetServer::CivetServer;
  /// Handles all methods. `shown` must outlive the server.
  void add_page(const char* path, page& shown) {
    mg_set_request_handler(context, path, &handle_request, &shown);
  }
};

}  // namespace

std::string http_address::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

result<http_address> parse_http_address(const std::string& text) {
  const auto wrong = [&](const char* problem) {
    return error{
        fmt::format("--metrics {}: {}, expected HOST:PORT, or :PORT for loopback", text, problem)};
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return wrong("no port");
  http_address at;
  at.host = text.substr(0, colon);
  if (at.host.size() > 2 && at.host.front() == '[' && at.host.back() == ']')
    at.host = at.host.substr(1, at.host.size() - 2);
  else if (at.host.find_first_of(":[],") != std::string::npos)
    return wrong("not a host name or address");
  if (at.host.empty()) at.host = "127.0.0.1";
  at.port = parse_number<std::uint16_t>(std::string_view{text}.substr(colon + 1)).value_or(0);
  if (at.port == 0) return wrong("not a port from 1 to 65535");
  return at;
}

namespace {

struct attempt {
  status listened;
  bool is_taken = false;  ///< by another process, which may end
};

error cannot_listen(const http_address& at, const char* why) {
  return error{fmt::format("--metrics {}: cannot listen: {}", at.text(), why)};
}

/// The server itself does not report why it cannot bind.
attempt try_listening(const http_address& at) {
  const auto failed = [&](const char* why) { return attempt{cannot_listen(at, why)}; };
  const bool has_ipv6 = mg_check_feature(MG_FEATURES_IPV6) != 0;
  if (!has_ipv6 && at.host.find(':') != std::string::npos)
    return failed("the HTTP server of this system does not support IPv6, expected an IPv4 address");
  addrinfo wanted{};
  wanted.ai_family = has_ipv6 ? AF_UNSPEC : AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int problem =
          ::getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &wanted, &found);
      problem != 0)
    return failed(::gai_strerror(problem));
  const int fd = ::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool free =
      fd >= 0 && ::bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, 1) == 0;
  const int problem = errno;
  if (fd >= 0) ::close(fd);
  ::freeaddrinfo(found);
  if (!free) return {cannot_listen(at, std::strerror(problem)), problem == EADDRINUSE};
  return {success()};
}

class civet_server final : public metrics_server {
 public:
  civet_server(http_address at, node_id node, const metrics::board& board)
      : at_(std::move(at)), metrics_(metrics_page(node, board)), health_(health_page(board)) {}

  attempt start() {
    if (auto a = try_listening(at_); !a.listened) return a;
    try {
      server_.emplace(std::vector<std::string>{"listening_ports", at_.text(), "num_threads",
                                               threads, "request_timeout_ms", request_ms_max});
    } catch (const CivetException& e) {
      return {cannot_listen(at_, e.what()), true};
    }
    server_->add_page("/metrics$", metrics_);
    server_->add_page("/healthz$", health_);
    return {success()};
  }

  void start_when_free() {
    waiting_ = std::jthread{[this](const std::stop_token& ended) {
      std::mutex mutex;
      std::unique_lock lock{mutex};
      std::condition_variable_any wake;
      while (!ended.stop_requested() && !start().listened)
        wake.wait_for(lock, ended, retry_interval, [] { return false; });
    }};
  }

 private:
  const http_address at_;
  page metrics_;
  page health_;
  std::optional<server> server_;  // after the pages, which its threads use
  std::jthread waiting_;          // last: it starts the server
};

}  // namespace

status check_free(const http_address& at) { return try_listening(at).listened; }

result<std::unique_ptr<metrics_server>> metrics_server::open(const http_address& at, node_id node,
                                                             const metrics::board& board,
                                                             bool waits) {
  auto made = std::make_unique<civet_server>(at, node, board);
  if (const auto a = made->start(); !a.listened) {
    if (!waits || !a.is_taken) return a.listened.failure();
    complain("{}; serving when it is free", a.listened.message());
    made->start_when_free();
  }
  return std::unique_ptr<metrics_server>{std::move(made)};
}

}  // namespace rrfp::apps
