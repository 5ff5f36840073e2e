/// What all nodes of a job know once they have joined.
#pragma once

#include <cstdint>

namespace rrfp::actors {

/// What a node knows of the machines of the job.
struct job_machines {
  /// All nodes use loopback addresses, so their data never leaves this machine's memory.
  bool is_one = true;
  std::uint32_t neighbours = 1;  ///< nodes of the job on this machine, this one included
  std::uint32_t place = 0;       ///< of this node among them, in the order of the numbers
};

/// What node 0 draws and finds out when all nodes have joined.
struct job_start {
  std::uint64_t token = 0;  ///< a random number, the same on all nodes
  job_machines machines;
};

}  // namespace rrfp::actors
