/// What a checkpoint is: written last of all its files, so that a folder without a manifest is
/// none. It says which files there are and how to know that they are as they were written, and of
/// which training this is a state.
///
///   {"format": 1, "step": 42, "written_at": "2026-01-31T12:00:00Z",
///    "identity": {"model.hidden": "128", ...}, "course": {"train.lr": "0.001", ...},
///    "pipeline": {"stages": 4, "chunks": 1, "placement": "linear", "microbatches": 16, "tp": 1,
///                 "replicas": 1},
///    "data": {"next_step": 42, "microbatches_read": 672},
///    "files": [{"name": "stage-000-rank-00.safetensors", "bytes": 123, "xxh64": "..."}, ...],
///    "xxh64": "..."}                                  of all that stands before it
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::checkpoint {

/// Others are not read.
inline constexpr std::uint32_t format_version = 1;
inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::uint64_t manifest_bytes_max = std::uint64_t{64} << 20;

/// A key of the job and its value as text.
struct setting {
  std::string key;
  std::string value;

  bool operator==(const setting&) const = default;
};

struct file_entry {
  std::string name;  ///< in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::uint64_t xxh64 = 0;

  bool operator==(const file_entry&) const = default;
};

struct manifest {
  /// Complete steps; the number of the one that comes next.
  std::uint64_t step = 0;
  /// UTC.
  std::string written_at;
  /// What must be the same for a run to go on from here.
  std::vector<setting> identity;
  /// What may have changed, to other results than those of a run that never stopped.
  std::vector<setting> course;
  /// How the work was shared when this was written. Any other way may go on.
  pipeline_shape shape;
  std::uint32_t tp = 1;
  std::uint32_t replicas = 1;
  /// Of all replicas, since the training began. The data of a step follows from its number.
  std::uint64_t microbatches_read = 0;
  std::vector<file_entry> files;
};

std::string to_json(const manifest& m);

/// Error: what is wrong (no JSON, cut short, altered, of another format), without the file's name.
result<manifest> parse_manifest(std::string_view text);

struct difference {
  std::string key;
  std::string saved;
  std::string now;  ///< empty: no longer there

  bool operator==(const difference&) const = default;
};

/// The keys of `saved` that have another value now. A key that came later has none to differ from.
std::vector<difference> differences(const std::vector<setting>& saved,
                                    const std::vector<setting>& now);

/// "2026-01-31T12:00:00Z"
std::string utc_now();

}  // namespace rrfp::checkpoint
