/// The checkpoint folder of a run. The newest `keep` checkpoints stay, older ones are removed.
///
///   DIR/step-00000042/manifest.json                    after 42 complete steps
///   DIR/step-00000042/stage-003-rank-01.safetensors    one for each rank of each stage
///   DIR/.step-00000050.tmp/                            being written, or left by a run that died
///   DIR/.lock                                          locked by the run that writes here
///
/// A checkpoint is written to a temporary folder, synced, and renamed as a whole; the core
/// (rrfp/core/ring_plan.hpp) decides the order. So a crash at any time leaves only complete
/// checkpoints, and checksums detect one that is torn or altered later.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/core/ring_plan.hpp>

namespace rrfp::checkpoint {

/// "stage-003-rank-01.safetensors"
std::string file_name(stage_id stage, rank_id rank);
/// The temporary folder of a checkpoint until it is complete; the same path on every node.
std::string folder_of_save(const std::string& dir, std::uint64_t step);

struct found_checkpoint {
  std::string folder;
  manifest contents;
};

/// What verify() compares with the manifest: file sizes, or the checksum of every byte.
enum class verification : std::uint8_t { sizes, checksums };

/// Checks one checkpoint. Error, naming the file: no manifest, a manifest of another format or
/// step, a file that is missing or has another size or, with `checksums`, another checksum.
result<found_checkpoint> verify(const std::string& folder, verification level);

struct search {
  std::optional<found_checkpoint> newest;
  /// One line for each newer checkpoint that is not usable.
  std::vector<std::string> skipped;
};

/// The newest usable checkpoint in `dir`; none if `dir` does not exist. Error: the folder cannot be
/// read.
result<search> find_newest(const std::string& dir, verification level);

/// What open() does if another run has locked the folder for longer than its patience.
enum class if_locked : std::uint8_t {
  fail,
  try_later,  ///< each begin() tries again, and is an error until then
};

/// Write access to the folder, exclusive to one run. Not thread-safe.
class ring {
 public:
  /// Creates the folder if it does not exist, and locks it until the object or the process ends.
  /// Error: the folder cannot be created or written to, or another run has locked it for longer
  /// than `patience`.
  static result<std::unique_ptr<ring>> open(const std::string& dir, std::uint32_t keep,
                                            std::chrono::milliseconds patience = {},
                                            if_locked then = if_locked::fail);
  ring(const ring&) = delete;
  ring& operator=(const ring&) = delete;
  ~ring();

  const std::string& dir() const { return dir_; }

  /// Moves the checkpoints of an earlier run into DIR/earlier-TIME. Returns that folder, or nullopt
  /// if there were none.
  result<std::optional<std::string>> set_aside();

  /// Removes the remains of incomplete saves and creates folder_of_save().
  status begin(std::uint64_t step);
  /// Call when all of m.files are written and synced. Writes the manifest, renames the checkpoint
  /// to its final name and removes checkpoints beyond `keep`. Error: a file is missing or has
  /// another size than its rank reported, or the manifest cannot be written; no checkpoint has
  /// changed then.
  status commit(const manifest& m);
  /// Keeps the newest `keep` checkpoints among those of step `good` and earlier; removes the
  /// others.
  void remove_older(std::uint64_t good);
  /// Removes the files of a checkpoint that will not be committed.
  void abandon(std::uint64_t step);

 private:
  ring(std::string dir, std::uint32_t keep, int lock, bool is_locked);

  /// `manifest`: as text, if the plan writes it.
  status carry_out(const plan& operations, const std::string& manifest = {}) const;
  /// None if the folder cannot be read.
  listing known_names() const;

  const std::string dir_;
  const std::uint32_t keep_;
  const int lock_;
  bool is_locked_;  ///< by this run; without it nothing is written
};

}  // namespace rrfp::checkpoint
