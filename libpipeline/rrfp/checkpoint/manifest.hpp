/// The manifest of a checkpoint: its files with their checksums, and the job that wrote them. It is
/// written after all other files, so a folder without a manifest is not a checkpoint.
///
///   {"format": 1, "step": 42, "written_at": "2026-01-31T12:00:00Z",
///    "identity": {"model.hidden": "128", ...}, "course": {"train.lr": "0.001", ...},
///    "pipeline": {"stages": 4, "chunks": 1, "placement": "linear", "microbatches": 16, "tp": 1,
///                 "replicas": 1},
///    "files": [{"name": "stage-000-rank-00.safetensors", "bytes": 123, "xxh64": "..."}, ...],
///    "xxh64": "..."}                                  of everything before it
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/base/setting.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/ring_plan.hpp>

namespace rrfp::checkpoint {

/// Manifests of another format are refused.
inline constexpr std::uint32_t format_version = 1;
inline constexpr std::uint64_t manifest_bytes_max = std::uint64_t{64} << 20;

struct manifest {
  /// Number of complete steps.
  std::uint64_t step = 0;
  /// UTC.
  std::string written_at;
  /// Settings that must be unchanged for a run to resume from here.
  std::vector<setting> identity;
  /// Settings that may change on resume; the results then differ from an uninterrupted run.
  std::vector<setting> course;
  /// The pipeline that wrote the checkpoint. A pipeline of another shape can resume from it.
  pipeline_shape shape;
  std::uint32_t tp = 1;
  std::uint32_t replicas = 1;
  /// What the job had added up, as bytes that only the job of this version reads; empty: nothing.
  std::string history;
  std::vector<file_entry> files;
};

std::string to_json(const manifest& m);

/// Error: the text is not JSON, truncated, altered or of another format; does not name the file.
result<manifest> parse_manifest(std::string_view text);

struct difference {
  std::string key;
  std::string saved;
  std::string now;  ///< empty: the key no longer exists

  bool operator==(const difference&) const = default;
};

/// The keys of `saved` whose value has changed. Keys that only `now` has are ignored.
std::vector<difference> differences(const std::vector<setting>& saved,
                                    const std::vector<setting>& now);

/// "2026-01-31T12:00:00Z"
std::string utc_now();

}  // namespace rrfp::checkpoint
