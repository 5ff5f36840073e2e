/// The names of entries in the checkpoint folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/base/result.hpp>

namespace rrfp::checkpoint {

/// The step that folder_name() encodes; nullopt for any other name.
std::optional<std::uint64_t> step_of(const std::string& name);

/// Whether `name` is a temporary folder: a checkpoint that is being written or removed.
bool is_leftover(const std::string& name);

/// The steps that have a folder in `dir`, newest first; none if `dir` does not exist.
result<std::vector<std::uint64_t>> steps_in(const std::string& dir);

std::string path_in(const std::string& dir, const std::string& name);

}  // namespace rrfp::checkpoint
