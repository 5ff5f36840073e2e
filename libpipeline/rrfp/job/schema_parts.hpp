/// What the sources of the schema share.
#pragma once

#include <span>

#include <rrfp/job/schema.hpp>

namespace rrfp::job {

/// The upper bound of counts, which only protects sums from overflow.
inline constexpr std::int64_t count_max = 1'000'000'000;

/// Adds [model], [vision], [data], [eval] and [train].
void add_training_keys(std::vector<key>& table);
/// Adds [jitter].
void add_weather_keys(std::vector<key>& table);
/// Adds [cost].
void add_cost_keys(std::vector<key>& table);

/// The value with absolute paths. Error: not UTF-8.
result<value> resolved(const key& k, value v, const std::filesystem::path& folder,
                       const origin& from);

/// Applies settings that were checked: short forms first, so that the keys that they set take
/// precedence.
void apply_settings(std::span<const setting> settings, job& j);

/// The times that a profile sets: a file that holds those of [cost]. Error: names the file, and the
/// line of a bad key.
result<std::vector<setting>> read_profile(const std::string& path);

}  // namespace rrfp::job
