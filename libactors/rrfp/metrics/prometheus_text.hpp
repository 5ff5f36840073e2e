/// The counters of a run in the text format of Prometheus, which docs/monitoring.md describes.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/metrics/run_counters.hpp>

namespace rrfp::metrics {

/// The Content-Type of the text over HTTP.
inline constexpr const char* prometheus_content_type = "text/plain; version=0.0.4; charset=utf-8";

/// `version` is that of the program; `run` is null before the first run; `now` is steady_now().
std::string prometheus_text(node_id node, const std::string& version, const run_counters* run,
                            std::int64_t now);

}  // namespace rrfp::metrics
