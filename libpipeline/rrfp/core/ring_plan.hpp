/// Decides what happens to the checkpoint folder of a run: which checkpoints stay, and in which
/// order files are written, synced, renamed and removed.
///
/// A plan is a list of operations on paths relative to the folder. Its driver carries them out in
/// their order, and stops at the first that fails, unless it may fail. It may also stop between any
/// two: all checkpoints are complete then, and only those beyond `keep` and that of a step that is
/// being saved again are gone.
///
///   - A checkpoint gets its name by the rename of a folder in which everything is synced.
///   - The rename is synced before an older checkpoint is removed.
///   - A checkpoint loses its name before its files are removed.
///
/// Pure: equal listings give equal plans. docs/driving-the-core.md has the driver's duties.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rrfp::checkpoint {

inline constexpr std::string_view manifest_name = "manifest.json";

/// A file that a manifest lists.
struct file_entry {
  std::string name;  ///< in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::uint64_t xxh64 = 0;

  bool operator==(const file_entry&) const = default;
};

/// "step-00000042"
std::string folder_name(std::uint64_t step);
/// ".step-00000042.tmp": a checkpoint that is being written.
std::string temporary_name(std::uint64_t step);
/// The step that folder_name() encodes; nullopt for any other name.
std::optional<std::uint64_t> step_of(const std::string& name);

/// The names of all entries of the checkpoint folder, in any order.
using listing = std::vector<std::string>;

/// The steps that have a checkpoint, newest first: the order in which a run that resumes verifies
/// them. The first usable one is resumed from.
std::vector<std::uint64_t> steps_of(const listing& names);

enum class file_verdict : std::uint8_t { intact, other_size, altered };
/// Whether a file is as its manifest says. `xxh64`: nothing if only sizes are compared.
file_verdict judge(const file_entry& listed, std::uint64_t bytes,
                   std::optional<std::uint64_t> xxh64);

namespace file_operation {

/// The file of a rank must be there with this size.
struct check_size {
  std::string path;
  std::uint64_t bytes;
};
struct make_folder {
  std::string path;
  std::string failure;  ///< if it fails: what the user is told, before the reason
};
struct write_manifest {
  std::string path;
};
struct sync_file {
  std::string path;
};
/// Makes renames, creations and removals in it durable. An empty path: the checkpoint folder.
struct sync_folder {
  std::string path;
};
struct rename {
  std::string from;
  std::string to;
  std::string failure;  ///< as above; empty: it may fail
};
/// Removes a folder with all that is in it. It may fail; the next save tries again.
struct remove {
  std::string path;
};

using any =
    std::variant<check_size, make_folder, write_manifest, sync_file, sync_folder, rename, remove>;

}  // namespace file_operation

using plan = std::vector<file_operation::any>;

/// Before the ranks write: removes what incomplete saves have left, and creates temporary_name().
plan plan_begin(const listing& names, std::uint64_t step);
/// After the ranks have written and synced `files`: completes the checkpoint, replaces an earlier
/// one of this step, and removes those beyond `keep`.
plan plan_commit(const listing& names, std::uint64_t step, std::span<const file_entry> files,
                 std::uint32_t keep);
/// The checkpoint will not be completed.
plan plan_abandon(std::uint64_t step);
/// Keeps the newest `keep` checkpoints among those of step `good` and earlier. Newer ones, which
/// were not usable, stay, so that users can inspect them.
plan plan_removal(const listing& names, std::uint64_t good, std::uint32_t keep);

struct setting_aside {
  std::string folder;  ///< empty: there is nothing to set aside
  plan operations;
};
/// Moves all checkpoints to a folder named after `now`.
setting_aside plan_setting_aside(const listing& names, const std::string& now);

}  // namespace rrfp::checkpoint
