/// Checkpoints of a session: the settings. run_summary.hpp has the report of each save.
///
/// A save begins between two steps: each rank of replica 0 copies its tensors, and the pipeline
/// waits only for that; a background thread writes the copies. When all ranks have written, the job
/// commits the checkpoint (checkpoint/ring.hpp). There is one save at a time: the next one, and the
/// pipeline with it, waits for it, for `save_time_max` at most.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/checkpoint/ring.hpp>

namespace rrfp::actors {

struct checkpoint_setup {
  /// One folder, shared by all nodes.
  std::string dir;
  /// Steps between two saves; 0: only at the end.
  std::uint64_t every = 0;
  /// The manifest without step, time and files.
  checkpoint::manifest head;
  /// The same folder, opened by node 0; null on others.
  std::shared_ptr<checkpoint::ring> ring = nullptr;
  /// Steps of the newest checkpoint in it; on node 0, of a run that goes on from copies.
  std::uint64_t newest_step = 0;
  /// A save that takes longer has failed, and is the last one of the run, so that copies do not
  /// pile up in memory.
  std::chrono::milliseconds save_time_max{600'000};
};

}  // namespace rrfp::actors
