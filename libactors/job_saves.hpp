/// The state of the saves of a run, one at a time: which step is being saved, what the ranks have
/// reported, and the outcome. Decides nothing about the steps themselves.
///
///   (none) -> copying -> writing -> committing -> (none)
///
/// Used by the job actor alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/checkpointing.hpp>

#include "messages.hpp"

namespace rrfp::actors {

class job_saves {
 public:
  /// `ranks` write a file each. The run starts with `first_step` complete steps, which are saved.
  job_saves(checkpoint_setup setup, std::uint32_t ranks, std::uint64_t first_step);

  const checkpoint_setup& setup() const { return setup_; }
  /// Whether the state after `steps` steps is to be saved now; `last`: no step follows.
  bool is_due(std::uint64_t steps, bool last) const;
  bool running() const { return current_.has_value(); }
  bool is_running(std::uint64_t step) const { return current_ && current_->step == step; }
  /// Of the running save.
  std::uint64_t step() const { return current_->step; }

  /// Times are nanoseconds since the run began. Error: the folder cannot be created; this step is
  /// not tried again.
  status begin(std::uint64_t steps, std::int64_t now);
  /// Record the message of one rank; true if it was the last rank. Stale messages are ignored.
  bool on_snapshot_taken(const snapshot_taken& m, std::int64_t now);
  bool on_snapshot_written(const snapshot_written& m);
  /// All ranks have written: the manifest to commit, or why there is nothing to commit.
  result<checkpoint::manifest> manifest() const;
  /// Ends the save: `failure` is empty if the checkpoint is complete.
  checkpoint_report end(std::string failure, std::int64_t now);

  bool is_overdue(std::int64_t now) const;
  /// No more saves in this run.
  void give_up() { given_up_ = true; }

  std::uint32_t saved() const { return saved_; }
  bool last_failed() const { return last_failed_; }

 private:
  struct save {
    std::uint64_t step = 0;
    std::int64_t began = 0;
    std::int64_t copied = 0;  ///< when the last rank had copied; 0: not yet
    std::int64_t copy_time = 0;
    std::uint32_t copies = 0;
    std::uint32_t answers = 0;
    std::vector<checkpoint::file_entry> files;
    std::string failure;
  };

  const checkpoint_setup setup_;
  const std::uint32_t ranks_;
  std::uint64_t last_step_;  ///< last step tried, or resumed from
  std::optional<save> current_;
  bool given_up_ = false;
  std::uint32_t saved_ = 0;
  bool last_failed_ = false;
};

}  // namespace rrfp::actors
