/// The checkpoint settings of a job file: where checkpoints go, and which one a run resumes from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/checkpointing.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/checkpoint/ring.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/safetensors/collection.hpp>

namespace rrfp::actors {

/// How the job saves; nothing if it makes no checkpoints. The caller opens the ring.
std::optional<checkpoint_setup> checkpoint_setup_of(const job::job& j,
                                                    std::vector<setting> identity);

/// The settings that a resumed run must share with the earlier run: job::identity() and the
/// fingerprint of its data, and the contents of model.pretrained (`weights`), which may be null.
std::vector<setting> identity_of(const job::job& j, std::uint64_t data,
                                 const safetensors::collection* weights);
/// Identifies the weights of a folder: "xxh64 " and a hash of the names, dtypes, shapes, and first
/// and last bytes of all tensors. Does not depend on how files divide them.
std::string fingerprint_of(const safetensors::collection& weights);
/// identity_of() for a model and data that the job file does not describe.
std::vector<setting> identity_without_model(const job::job& j);

struct resume_choice {
  /// The folder into which earlier checkpoints were moved; empty: none were.
  std::string set_aside;
  /// The checkpoint to resume from; nothing: the run starts at step 1.
  std::optional<checkpoint::found_checkpoint> from;
  /// Newer checkpoints that cannot be used, a line each.
  std::vector<std::string> skipped;
  /// Settings that changed since the checkpoint and change the results, a line each.
  std::vector<std::string> changed;

  /// Notes for the user, a line each; the checkpoint resumed from is not among them.
  std::vector<std::string> notes() const;
};

/// Chooses the newest usable checkpoint of the folder, as checkpoint.resume says. Changes nothing.
/// Error, which names the key of the job: a checkpoint is required and none is found, or it has
/// another model, seed, optimizer or data, or more steps than train.steps.
result<resume_choice> choose_resume(const job::job& j, const checkpoint_setup& setup,
                                    checkpoint::verification how);

/// Opens the folder as the ring of `setup`, which moves earlier checkpoints away if
/// checkpoint.resume says so, verifies all checksums, and chooses as choose_resume(). To be called
/// on node 0 alone, before each run. `from`: where the job goes on after a loss; from copies it
/// resumes from no checkpoint. The errors are those of choose_resume(), or of the folder.
result<resume_choice> hold_checkpoints(job::job j, checkpoint_setup& setup,
                                       const recovery_point& from);

}  // namespace rrfp::actors
