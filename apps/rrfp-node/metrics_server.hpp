/// Serves the metrics of the current run over HTTP: /metrics in the text format of Prometheus,
/// /healthz for probes. Metrics are collected per request only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/metrics/board.hpp>

namespace rrfp::apps {

struct http_address {
  std::string host;
  std::uint16_t port = 0;

  std::string text() const;
};

/// "HOST:PORT", "[IPV6]:PORT", or ":PORT" for loopback. Error: one line with the reason.
result<http_address> parse_http_address(const std::string& text);

/// Checks that a server can listen on the address. Error: why not.
status check_free(const http_address& at);

class metrics_server {
 public:
  /// Starts to listen. `board` must outlive the server. Error: the address is in use, or does not
  /// belong to this machine. `waits`: if it is in use, says so and starts when it is free; the
  /// process that this one replaces may have it until it ends.
  static result<std::unique_ptr<metrics_server>> open(const http_address& at, node_id node,
                                                      const metrics::board& board,
                                                      bool waits = false);
  metrics_server() = default;
  metrics_server(const metrics_server&) = delete;
  metrics_server& operator=(const metrics_server&) = delete;
  virtual ~metrics_server() = default;
};

}  // namespace rrfp::apps
