/// The tables of the page.
#pragma once

#include <string>

#include "page_data.hpp"

namespace rrfp::experiment {

/// One row per workload with the paper's speed-ups beside ours; empty if no workload has any.
std::string paper_rows(const page_data& x, std::size_t weather);

/// One table per workload: step time, device time and memory of each run.
std::string workload_tables(const page_data& x, std::size_t weather);

/// One row per run: how well the times of the last engine agree with those of the first.
std::string agreement_html(const experiment& e, const std::vector<outcome>& simulated,
                           const std::vector<outcome>& measured);

/// Geometric mean, minimum and maximum of a run's speed-ups over the workloads.
struct overall {
  double mean = 1;
  spread range;
  double idle = 0;
};

overall overall_of(const page_data& x, std::size_t weather, std::size_t run);

}  // namespace rrfp::experiment
