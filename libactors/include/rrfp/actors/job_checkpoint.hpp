/// What a job file says of checkpoints: where they go, and what a run goes on from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/checkpointing.hpp>
#include <rrfp/checkpoint/ring.hpp>
#include <rrfp/data/source.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::actors {

/// Nothing if the job makes no checkpoints. `data` may be null. The ring is the caller's to open.
std::optional<checkpoint_setup> checkpoint_setup_of(const job::job& j, const data::source* data);

struct resume_choice {
  /// Nothing: the run starts.
  std::optional<checkpoint::found> from;
  /// Newer checkpoints that cannot be used, a line each.
  std::vector<std::string> passed_over;
  /// What the job has changed since, so that results are others than without, a line each.
  std::vector<std::string> changed;
};

/// As checkpoint.resume says, the newest checkpoint of the folder that can be used. Changes
/// nothing. Error, naming the key of the job: there is none and must be one, it is of another
/// model, seed, optimizer or data, or beyond train.steps.
result<resume_choice> choose_resume(const job::job& j, const checkpoint_setup& setup,
                                    checkpoint::scrutiny how);

}  // namespace rrfp::actors
