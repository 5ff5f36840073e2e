/// Converts the counters of a run to Prometheus metrics.
#pragma once

#include <cstdint>
#include <vector>

#include <prometheus/metric_family.h>

#include <rrfp/base/ids.hpp>
#include <rrfp/metrics/run_counters.hpp>

namespace rrfp::apps {

/// `run` is null before the first run; `now` is metrics::steady_now().
std::vector<prometheus::MetricFamily> families_of(node_id node, const metrics::run_counters* run,
                                                  std::int64_t now);

}  // namespace rrfp::apps
