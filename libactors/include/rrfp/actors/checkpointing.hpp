/// Checkpoints of a session: what is asked for, and what is told of each.
///
/// A save begins between two steps: each rank of replica 0 copies its tensors, which is all that
/// the pipeline waits for, and a thread beside writes them. When all ranks have written, the job
/// puts the checkpoint in its place (checkpoint/ring.hpp). One save at a time: the next one waits
/// for it, and the pipeline with it, for `save_time_max` at most.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/checkpoint/ring.hpp>

namespace rrfp::actors {

struct checkpoint_setup {
  /// The same on every node, and one folder for all of them.
  std::string dir;
  /// Steps between two saves; 0: at the end alone.
  std::uint64_t every = 0;
  /// What the manifests say but for step, time and files.
  checkpoint::manifest head;
  /// The same folder, held by the node that runs the job; null on others.
  std::shared_ptr<checkpoint::ring> ring = nullptr;
  /// A save that takes longer has failed, and is the last one of the run: what still waits to be
  /// written must not pile up in memory.
  std::chrono::milliseconds save_time_max{600'000};
};

/// One save, however it ended.
struct checkpoint_report {
  std::uint64_t step = 0;  ///< complete steps
  std::string failure;     ///< why there is none; empty: it stands
  std::uint32_t files = 0;
  std::uint64_t bytes = 0;
  double copy_ms = 0;        ///< of the rank that took longest
  double background_ms = 0;  ///< from the copy until the checkpoint stood, or the failure
};

}  // namespace rrfp::actors
