#include "metrics_server.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include <CivetServer.h>
#include <fmt/format.h>
#include <prometheus/text_serializer.h>

#include "metric_families.hpp"

namespace rrfp::apps {

namespace {

/// A scrape takes milliseconds; more at once than that wait.
constexpr const char* threads = "2";
/// A client that does not finish its request, in milliseconds.
constexpr const char* request_ms_max = "5000";

void answer(mg_connection* to, int code, const char* reason, const char* type,
            const std::string& body) {
  mg_printf(to,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            code, reason, type, body.size());
  mg_write(to, body.data(), body.size());
}

class metrics_page final : public CivetHandler {
 public:
  metrics_page(node_id node, const metrics::board& board) : node_(node), board_(board) {}

  bool handleGet(CivetServer*, mg_connection* from) override {
    const auto run = board_.current();
    const auto text = prometheus::TextSerializer{}.Serialize(
        families_of(node_, run.get(), metrics::steady_now()));
    answer(from, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", text);
    return true;
  }

 private:
  const node_id node_;
  const metrics::board& board_;
};

class health_page final : public CivetHandler {
 public:
  explicit health_page(const metrics::board& board) : board_(board) {}

  bool handleGet(CivetServer*, mg_connection* from) override {
    const auto run = board_.current();
    const auto health = metrics::health_of(run.get(), metrics::steady_now());
    answer(from, health.good ? 200 : 503, health.good ? "OK" : "Service Unavailable",
           "text/plain; charset=utf-8", health.why + "\n");
    return true;
  }

 private:
  const metrics::board& board_;
};

}  // namespace

std::string http_address::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

result<http_address> parse_http_address(const std::string& text) {
  const auto wrong = [&](const char* what) {
    return error{
        fmt::format("--metrics {}: {}, expected HOST:PORT, or :PORT for loopback", text, what)};
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return wrong("no port");
  http_address at;
  at.host = text.substr(0, colon);
  if (at.host.size() > 2 && at.host.front() == '[' && at.host.back() == ']')
    at.host = at.host.substr(1, at.host.size() - 2);
  else if (at.host.find_first_of(":[],") != std::string::npos)
    return wrong("no host name or address");
  if (at.host.empty()) at.host = "127.0.0.1";
  const auto* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, at.port);
  if (problem != std::errc{} || rest != end || at.port == 0)
    return wrong("no port from 1 to 65535");
  return at;
}

/// The server's own way to bind says no more than that it could not.
status check_free(const http_address& at) {
  const auto failed = [&](const char* why) {
    return error{fmt::format("--metrics {}: cannot listen: {}", at.text(), why)};
  };
  addrinfo wanted{};
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
    server_.addHandler("/metrics$", metrics_);
    server_.addHandler("/healthz$", health_);
  }

 private:
  metrics_page metrics_;
  health_page health_;
  CivetServer server_;  // last: its threads use what is above
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
