/// What the saves of a run leave to report and commit, one save at a time: the folder, what the
/// ranks have written, and the outcome. The job core decides when a save begins and ends.
///
/// Used by the job actor alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/checkpointing.hpp>
#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/run_summary.hpp>

namespace rrfp::actors {

class job_saves {
 public:
  /// `ranks` write a file each.
  job_saves(checkpoint_setup setup, std::uint32_t ranks);

  const checkpoint_setup& setup() const { return setup_; }

  /// Times are nanoseconds since the run began. `history`: for the manifest. Error: the folder
  /// cannot be created. Even then, end() ends the save.
  status begin(std::uint64_t steps, std::int64_t now, std::string history);
  /// Record the message of one rank. Stale messages are ignored.
  void record(const snapshot_taken& m, std::int64_t now);
  void record(const snapshot_written& m);
  /// All ranks have written: the manifest to commit.
  checkpoint::manifest manifest() const;
  /// Ends the save: `failure` is empty if the checkpoint is complete.
  checkpoint_report end(std::string failure, std::int64_t now);

  std::uint32_t saved() const { return saved_; }
  bool last_failed() const { return last_failed_; }

 private:
  struct save {
    std::uint64_t step = 0;
    std::int64_t began = 0;
    std::int64_t copied = 0;  ///< when the last rank had copied; 0: not yet
    std::int64_t copy_time = 0;
    std::uint32_t copies = 0;
    std::string history;
    std::vector<checkpoint::file_entry> files;
  };

  const checkpoint_setup setup_;
  const std::uint32_t ranks_;
  std::optional<save> current_;
  std::uint32_t saved_ = 0;
  bool last_failed_ = false;
};

}  // namespace rrfp::actors
