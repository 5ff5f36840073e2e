#include <rrfp/core/ring_plan.hpp>

#include <algorithm>

#include <rrfp/base/parse_number.hpp>

namespace rrfp::checkpoint {

using namespace file_operation;

namespace {

constexpr std::string_view step_prefix = "step-";
constexpr std::size_t digits_min = 8;

bool is_leftover(const std::string& name) {
  return name.starts_with("." + std::string{step_prefix}) && name.ends_with(".tmp");
}

bool has(const listing& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Renames before it removes, so a partly removed checkpoint never has a valid name.
void put_away(plan& p, const listing& names, const std::string& folder) {
  const auto away = "." + folder + ".old.tmp";
  if (has(names, away)) p.push_back(remove{away});
  p.push_back(rename{folder, away, {}});
  p.push_back(remove{away});
}

}  // namespace

std::string folder_name(std::uint64_t step) {
  auto digits = std::to_string(step);
  if (digits.size() < digits_min) digits.insert(0, digits_min - digits.size(), '0');
  return std::string{step_prefix} + digits;
}

std::string temporary_name(std::uint64_t step) { return "." + folder_name(step) + ".tmp"; }

std::optional<std::uint64_t> step_of(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const auto step = parse_number<std::uint64_t>(name.substr(step_prefix.size()));
  return step && folder_name(*step) == name ? step : std::nullopt;
}

std::vector<std::uint64_t> steps_of(const listing& names) {
  std::vector<std::uint64_t> steps;
  for (const auto& name : names)
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

file_verdict judge(const file_entry& listed, std::uint64_t bytes,
                   std::optional<std::uint64_t> xxh64) {
  if (bytes != listed.bytes) return file_verdict::other_size;
  return xxh64.value_or(listed.xxh64) == listed.xxh64 ? file_verdict::intact
                                                      : file_verdict::altered;
}

plan plan_begin(const listing& names, std::uint64_t step) {
  plan p;
  for (const auto& name : names)
    if (is_leftover(name)) p.push_back(remove{name});
  const auto folder = temporary_name(step);
  p.push_back(make_folder{folder, folder + ": cannot create the folder"});
  return p;
}

plan plan_commit(const listing& names, std::uint64_t step, std::span<const file_entry> files,
                 std::uint32_t keep) {
  plan p;
  const auto folder = temporary_name(step);
  for (const auto& f : files) p.push_back(check_size{folder + "/" + f.name, f.bytes});
  const auto manifest = folder + "/" + std::string{manifest_name};
  p.push_back(write_manifest{manifest});
  p.push_back(sync_file{manifest});
  p.push_back(sync_folder{folder});
  const auto place = folder_name(step);
  auto after = names;
  // It was not usable, or is one of an earlier run.
  if (has(names, place))
    put_away(p, names, place);
  else
    after.push_back(place);
  p.push_back(rename{folder, place, place + ": cannot rename the new checkpoint"});
  p.push_back(sync_folder{});
  const auto removal = plan_removal(after, step, keep);
  p.insert(p.end(), removal.begin(), removal.end());
  return p;
}

plan plan_abandon(std::uint64_t step) { return {remove{temporary_name(step)}}; }

plan plan_removal(const listing& names, std::uint64_t good, std::uint32_t keep) {
  plan p;
  std::uint32_t kept = 0;
  for (const auto step : steps_of(names))
    if (step <= good && ++kept > keep) put_away(p, names, folder_name(step));
  return p;
}

setting_aside plan_setting_aside(const listing& names, const std::string& now) {
  setting_aside s;
  const auto steps = steps_of(names);
  if (steps.empty()) return s;
  // Two runs within a second need different names.
  s.folder = "earlier-" + now;
  for (int n = 2; has(names, s.folder); ++n) s.folder = "earlier-" + now + "-" + std::to_string(n);
  const auto failure = s.folder + ": cannot move earlier checkpoints here";
  s.operations.push_back(make_folder{s.folder, failure});
  for (const auto step : steps) {
    const auto name = folder_name(step);
    s.operations.push_back(rename{name, s.folder + "/" + name, failure});
  }
  s.operations.push_back(sync_folder{s.folder});
  s.operations.push_back(sync_folder{});
  return s;
}

}  // namespace rrfp::checkpoint
