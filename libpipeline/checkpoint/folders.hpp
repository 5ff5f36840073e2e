/// The names in a ring's folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/schedule/result.hpp>

namespace rrfp::checkpoint {

/// The step of a folder_name(); nothing for other names.
std::optional<std::uint64_t> step_of(const std::string& name);

/// Whether it is the name of something on its way in or out.
bool is_leftover(const std::string& name);

/// The steps that have a folder, newest first. None if the folder is not there.
result<std::vector<std::uint64_t>> steps_in(const std::string& dir);

std::string path_in(const std::string& dir, const std::string& name);

}  // namespace rrfp::checkpoint
