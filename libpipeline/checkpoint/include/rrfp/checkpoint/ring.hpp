/// The folder of a run's checkpoints, of which the newest few are kept.
///
///   DIR/step-00000042/manifest.json                    after 42 complete steps
///   DIR/step-00000042/stage-003-rank-01.safetensors    one for each rank of each stage
///   DIR/.step-00000050.tmp/                            on its way, or left by a run that died
///   DIR/.lock                                          held by the run that writes here
///
/// A checkpoint is made in a folder beside, synced and renamed as a whole; older ones go only when
/// the new one stands. So whenever a run dies, those that stand are as they were written, and one
/// that is torn or altered later is known by its sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::checkpoint {

/// "step-00000042"
std::string folder_name(std::uint64_t step);
/// "stage-003-rank-01.safetensors"
std::string file_name(stage_id stage, rank_id rank);
/// Where the files of a checkpoint are put until it is complete: the same on every node.
std::string folder_of_save(const std::string& dir, std::uint64_t step);

struct found {
  std::string folder;
  manifest what;
};

/// How closely files are looked at: their sizes, or every byte.
enum class scrutiny : std::uint8_t { sizes, checksums };

/// One checkpoint. Error, naming the file: no manifest, one of another format or another step, a
/// file that is missing, of another size or, if asked for, of another sum.
result<found> verify(const std::string& folder, scrutiny how);

struct search {
  std::optional<found> newest;
  /// Newer ones that cannot be used, a line each.
  std::vector<std::string> passed_over;
};

/// The newest checkpoint of the folder that can be used; none in a folder that is not there. Error:
/// the folder cannot be read.
result<search> find_newest(const std::string& dir, scrutiny how);

/// The folder as its only writer has it. Not thread-safe.
class ring {
 public:
  /// Makes the folder if there is none, and holds it until the end of the object or the process.
  /// Error: it cannot be made or written to, or another run holds it.
  static result<std::unique_ptr<ring>> open(const std::string& dir, std::uint32_t keep);
  ring(const ring&) = delete;
  ring& operator=(const ring&) = delete;
  ~ring();

  const std::string& dir() const { return dir_; }

  /// Moves the checkpoints of an earlier run into DIR/earlier-TIME. Gives that folder, or nothing
  /// if there were none.
  result<std::optional<std::string>> set_aside();

  /// Removes what torn saves have left, and makes folder_of_save().
  status begin(std::uint64_t step);
  /// All of m.files are there and synced: the checkpoint takes its place, and those beyond `keep`
  /// are removed. Error: a file is not there as its rank says, or the manifest cannot be written;
  /// nothing has changed then.
  status commit(const manifest& m);
  /// Of the checkpoint of step `good` and the older ones the newest `keep` stay.
  void remove_older(std::uint64_t good);
  /// Removes what has been written of a checkpoint that will not be.
  void abandon(std::uint64_t step);

 private:
  ring(std::string dir, std::uint32_t keep, int lock);
  void remove_leftovers();
  /// In two steps, so that no half of a checkpoint is ever found under its name.
  void remove(const std::string& folder);

  const std::string dir_;
  const std::uint32_t keep_;
  const int lock_;
};

}  // namespace rrfp::checkpoint
