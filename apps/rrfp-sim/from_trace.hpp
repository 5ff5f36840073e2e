/// rrfp-sim --from: what readiness and other schedules would have made of recorded runs.
#pragma once

#include <string>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/foreign/read_traces.hpp>

namespace rrfp::apps {

/// What is printed, and for each run one line of JSON and a chart (SVG).
struct forecast_texts {
  std::string table;
  std::string json;
  std::vector<std::string> charts;
};

/// Errors: see foreign::read_traces() and forecast::make_forecast().
result<forecast_texts> forecasts_from(const std::vector<std::string>& traces,
                                      const foreign::read_options& log, double backward_share);

}  // namespace rrfp::apps
