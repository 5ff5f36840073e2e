/// Converts between the tensors of a rank and the files of a checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/checkpoint/ring.hpp>
#include <rrfp/compute/rank_compute.hpp>

namespace rrfp::actors {

/// Writes the snapshot of a rank after `step` steps into `folder`, under
/// checkpoint::file_name(), and syncs the file. Error: names the file.
result<checkpoint::file_entry> write_rank(const std::string& folder, stage_id stage, rank_id rank,
                                          std::uint64_t step,
                                          std::span<const compute::named_buffer> tensors);

/// The tensors of all files of a checkpoint, memory-mapped: data is read on first access. Each
/// keeps its file mapped, and must not be written to. Error: a file is not a valid safetensors
/// file, or describes an invalid part; names the file.
result<std::vector<compute::named_buffer>> open_tensors(const checkpoint::found_checkpoint& from);

}  // namespace rrfp::actors
