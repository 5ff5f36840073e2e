#include "metrics_server.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include <CivetServer.h>
#include <fmt/format.h>

#include <rrfp/metrics/prometheus_text.hpp>

namespace rrfp::apps {

namespace {

/// A scrape takes milliseconds, but a client that does not finish its request occupies a thread. A
/// probe, which Kubernetes gives one second by default, must not wait for such clients. Idle
/// threads sleep.
constexpr const char* threads = "32";
/// Time for a client to finish its request, and to receive the response, in milliseconds.
constexpr const char* request_ms_max = "2000";

struct reply {
  int code = 0;
  const char* reason = "";
  const char* type = "";
  std::string body;
};

/// A page about the current run.
class page {
 public:
  virtual ~page() = default;
  virtual reply render() const = 0;
};

class metrics_page final : public page {
 public:
  metrics_page(node_id node, const metrics::board& board) : node_(node), board_(board) {}

  reply render() const override {
    const auto run = board_.current();
    return {200, "OK", metrics::prometheus_content_type,
            metrics::prometheus_text(node_, RRFP_VERSION, run.get(), metrics::steady_now())};
  }

 private:
  const node_id node_;
  const metrics::board& board_;
};

class health_page final : public page {
 public:
  explicit health_page(const metrics::board& board) : board_(board) {}

  reply render() const override {
    const auto run = board_.current();
    const auto health = metrics::health_of(run.get(), metrics::steady_now());
    return {health.good ? 200 : 503, health.good ? "OK" : "Service Unavailable",
            "text/plain; charset=utf-8", health.why + "\n"};
  }

 private:
  const metrics::board& board_;
};

/// Answers GET, and HEAD, which is GET without the body; refuses all other methods. `requested` is
/// the page.
int handle_request(mg_connection* connection, void* requested) {
  const std::string_view method = mg_get_request_info(connection)->request_method;
  const bool is_head = method == "HEAD";
  const bool is_read = is_head || method == "GET";
  const auto r = is_read ? static_cast<const page*>(requested)->render()
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
  const auto* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, at.port);
  if (problem != std::errc{} || rest != end || at.port == 0)
    return wrong("no port from 1 to 65535");
  return at;
}

/// The server itself does not report why it cannot bind.
status check_free(const http_address& at) {
  const auto failed = [&](const char* why) {
    return error{fmt::format("--metrics {}: cannot listen: {}", at.text(), why)};
  };
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
  if (!free) return failed(std::strerror(problem));
  return success();
}

class metrics_server::impl {
 public:
  impl(const http_address& at, node_id node, const metrics::board& board)
      : metrics_(node, board),
        health_(board),
        server_(std::vector<std::string>{"listening_ports", at.text(), "num_threads", threads,
                                         "request_timeout_ms", request_ms_max}) {
    server_.add_page("/metrics$", metrics_);
    server_.add_page("/healthz$", health_);
  }

 private:
  metrics_page metrics_;
  health_page health_;
  server server_;  // last: its threads use the pages
};

metrics_server::metrics_server(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
metrics_server::~metrics_server() = default;

result<std::unique_ptr<metrics_server>> metrics_server::open(const http_address& at, node_id node,
                                                             const metrics::board& board) {
  if (auto free = check_free(at); !free) return free.failure();
  try {
    return std::unique_ptr<metrics_server>{
        new metrics_server{std::make_unique<impl>(at, node, board)}};
  } catch (const CivetException& e) {
    return error{fmt::format("--metrics {}: cannot listen: {}", at.text(), e.what())};
  }
}

}  // namespace rrfp::apps
