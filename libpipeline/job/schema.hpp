/// The table of keys: what a job file may hold. Parsing, errors, the dump and the reference all use
/// it; no other code lists keys.
#pragma once

#include <string_view>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/job/key_table.hpp>

namespace rrfp::job {

using key = basic_key<job>;

/// In the order of the reference and of the dump.
const std::vector<section_info>& sections();
const std::vector<key>& keys();

const key_table<job>& job_keys();

/// Null if there is no such key.
const key* find_key(std::string_view path);

}  // namespace rrfp::job
