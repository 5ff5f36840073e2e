/// What a job file says of checkpoints: where they go, and what a run goes on from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/actors/checkpointing.hpp>
#include <rrfp/actors/end_cause.hpp>
#include <rrfp/actors/membership.hpp>
#include <rrfp/checkpoint/ring.hpp>
#include <rrfp/data/source.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/safetensors/collection.hpp>

namespace rrfp::actors {

/// Nothing if the job makes no checkpoints. The ring is the caller's to open.
std::optional<checkpoint_setup> checkpoint_setup_of(const job::job& j,
                                                    std::vector<checkpoint::setting> identity);

/// What a training that goes on must have in common with the one before it: job::identity() and the
/// contents of `data` and of model.pretrained, `weights`; both may be null.
std::vector<checkpoint::setting> identity_of(const job::job& j, const data::source* data,
                                             const safetensors::collection* weights);
/// Tells the weights of one folder from those of another: "xxh64 " and a hash of the names, dtypes,
/// shapes and first and last bytes of all tensors, however they are spread over files.
std::string fingerprint_of(const safetensors::collection& weights);
/// The same of a model and data that the job does not know.
std::vector<checkpoint::setting> identity_without_model(const job::job& j);

struct resume_choice {
  /// Where earlier checkpoints were set aside; empty: nowhere.
  std::string set_aside;
  /// Nothing: the run starts.
  std::optional<checkpoint::found> from;
  /// Newer checkpoints that cannot be used, a line each.
  std::vector<std::string> passed_over;
  /// What the job has changed since, so that results are others than without, a line each.
  std::vector<std::string> changed;

  /// What the user should be told, a line each; the resumption itself is not among them.
  std::vector<std::string> notes() const;
};

/// As checkpoint.resume says, the newest checkpoint of the folder that can be used. Changes
/// nothing. Error, naming the key of the job: there is none and must be one, it is of another
/// model, seed, optimizer or data, or beyond train.steps.
result<resume_choice> choose_resume(const job::job& j, const checkpoint_setup& setup,
                                    checkpoint::scrutiny how);

/// Before a run, on all its nodes: node 0 opens the folder, holds it in `setup.ring` and chooses,
/// after a look at every byte, and all nodes take what it has chosen, for two may see a shared
/// folder differently. `members` is null if there is one node. The end, the same on all nodes: as
/// choose_resume(), or one does not see what was chosen; or a node was lost.
std::variant<resume_choice, end_cause> agree_on_resume(const job::job& j, checkpoint_setup& setup,
                                                       membership* members);

}  // namespace rrfp::actors
