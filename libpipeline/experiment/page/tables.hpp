/// The tables of the page.
#pragma once

#include <string>

#include "page/examined.hpp"

namespace rrfp::experiment {

/// A row a workload, the paper's speed-ups beside ours; empty if no workload has any.
std::string paper_rows(const examined& x, std::size_t weather);

/// A table a workload: of each run step time, where the time went, and memory.
std::string workload_tables(const examined& x, std::size_t weather);

/// A row a run: how well the last engine's times agree with the first one's.
std::string agreement_rows(const experiment& e, const std::vector<outcome>& simulated,
                           const std::vector<outcome>& measured);

/// Geometric mean of a run's speed-ups over the workloads, and the least and the most of them.
struct overall {
  double mean = 1;
  spread of;
  double idle = 0;
};

overall overall_of(const examined& x, std::size_t weather, std::size_t run);

}  // namespace rrfp::experiment
