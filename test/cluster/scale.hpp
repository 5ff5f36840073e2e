/// Clusters of hundreds and thousands of nodes: what joining, heartbeats, saves, a recovery and
/// goodbye cost, of all nodes together and of node 0, through which most of it goes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster.hpp"
#include "traffic.hpp"

namespace rrfp::cluster {

/// A node for each stage, steps with copies and saves, and the crash of one node.
scenario scale_scenario(std::uint32_t nodes);

struct scale_result {
  std::uint32_t nodes = 0;
  traffic counted;
  nanoseconds time = 0;      ///< of the whole run
  nanoseconds recovery = 0;  ///< from the crash to the next complete step
  outcome ended;
};

scale_result run_at_scale(std::uint32_t nodes);

/// How long node 0 is busy with what it sends and gets, at the rates that the table names.
nanoseconds busy_time_of_0(const traffic::sums& of);

std::string table_of(const std::vector<scale_result>& results);
/// What grows faster than n log n between two sizes, or keeps node 0 too busy; empty: nothing.
std::vector<std::string> faults_of_scale(const std::vector<scale_result>& results);

}  // namespace rrfp::cluster
