/// The table of keys: what a job file may hold. Parsing, errors, the dump and the reference all use
/// it; no other code lists keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/job/key_types.hpp>

namespace rrfp::job {

using key = basic_key<job>;

template <class Section>
using section_keys = basic_section_keys<job, Section>;

const key_table<job>& job_keys();
/// In the order of the reference and of the dump.
const std::vector<key>& keys();

/// Upper bounds, which only protect sums from overflow.
inline constexpr double ms_max = 1e6;
inline constexpr std::int64_t count_max = 1'000'000'000;
/// Adds [model], [vision], [data], [eval] and [train].
void add_training_keys(std::vector<key>& table);
/// Adds [jitter].
void add_weather_keys(std::vector<key>& table);
/// Adds [cost] and the sections that describe a preset.
void add_cost_keys(std::vector<key>& table);

/// The value with absolute paths. Error: not UTF-8.
result<value> resolved(const key& k, value v, const std::filesystem::path& folder,
                       const origin& from);
/// The same in the form in which the job holds it. Error: of the wrong type or out of range.
result<value> read_value_of(const key& k, const value& v, const std::filesystem::path& folder,
                            const origin& from);

/// Null if there is no such key.
const key* find_key(std::string_view path);

/// The times that a profile sets: a file that holds those of [cost]. Error: names the file, and the
/// line of a bad key.
result<std::vector<setting>> read_profile(const std::string& path);

}  // namespace rrfp::job
