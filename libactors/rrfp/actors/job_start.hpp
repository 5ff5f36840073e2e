/// What all nodes of a job know before a run.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp::actors {

/// What a node knows of the machines of the job.
struct job_machines {
  /// All nodes use loopback addresses, so their data never leaves this machine's memory.
  bool is_one = true;
  std::uint32_t neighbours = 1;  ///< nodes of the job on this machine, this one included
  std::uint32_t place = 0;       ///< of this node among them, in the order of the numbers
};
auto fields(auto f, job_machines& x) { return f(x.is_one, x.neighbours, x.place); }

/// What node 0 draws and finds out before each run.
struct job_start {
  std::uint64_t token = 0;  ///< a random number of the run, the same on all nodes
  job_machines machines;
  std::vector<node_id> absent{};  ///< the nodes that the job has gone on without
};
auto fields(auto f, job_start& x) { return f(x.token, x.machines, x.absent); }

}  // namespace rrfp::actors
