#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/checkpoint/ring.hpp>

#include "folders.hpp"

namespace rrfp::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view step_prefix = "step-";

result<std::string> text_of(const std::string& path) {
  std::error_code unknown;
  const auto bytes = fs::file_size(path, unknown);
  if (unknown) return error{path + ": cannot read: " + unknown.message()};
  if (bytes > manifest_bytes_max)
    return error{path + ": " + std::to_string(bytes) + " bytes: expected at most " +
                 std::to_string(manifest_bytes_max)};
  const std::ifstream in{path, std::ios::binary};
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return error{path + ": cannot read"};
  return text.str();
}

status verify_file(const std::string& folder, const file_entry& f, verification level) {
  const auto path = path_in(folder, f.name);
  std::error_code unknown;
  const auto bytes = fs::file_size(path, unknown);
  if (unknown) return error{path + ": " + unknown.message()};
  if (bytes != f.bytes)
    return error{path + ": expected " + std::to_string(f.bytes) + " bytes, got " +
                 std::to_string(bytes)};
  if (level == verification::sizes) return success();
  const auto sum = sum_of_file(path);
  if (!sum) return sum.failure();
  if (sum->bytes == f.bytes && sum->xxh64 == f.xxh64) return success();
  return error{path + ": altered: expected xxh64 " + hex(f.xxh64) + ", got " + hex(sum->xxh64)};
}

}  // namespace

std::string path_in(const std::string& dir, const std::string& name) {
  return (fs::path{dir} / name).string();
}

std::string folder_name(std::uint64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08llu", static_cast<unsigned long long>(step));
  return name;
}

std::string file_name(stage_id stage, rank_id rank) {
  char name[64];
  std::snprintf(name, sizeof name, "stage-%03u-rank-%02u.safetensors", stage.value(), rank.value());
  return name;
}

std::string folder_of_save(const std::string& dir, std::uint64_t step) {
  return path_in(dir, "." + folder_name(step) + ".tmp");
}

std::optional<std::uint64_t> step_of(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  std::uint64_t step = 0;
  const auto* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + step_prefix.size(), end, step);
  if (read.ec != std::errc{} || read.ptr != end || folder_name(step) != name) return std::nullopt;
  return step;
}

bool is_leftover(const std::string& name) {
  return name.starts_with("." + std::string{step_prefix}) && name.ends_with(".tmp");
}

result<std::vector<std::uint64_t>> steps_in(const std::string& dir) {
  std::error_code failed;
  std::vector<std::uint64_t> steps;
  if (!fs::exists(dir, failed) && !failed) return steps;
  fs::directory_iterator at{dir, failed};
  for (; !failed && at != fs::directory_iterator{}; at.increment(failed))
    if (const auto step = step_of(at->path().filename().string())) steps.push_back(*step);
  if (failed) return error{dir + ": cannot read the folder: " + failed.message()};
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

result<found_checkpoint> verify(const std::string& folder, verification level) {
  const auto path = path_in(folder, std::string{manifest_name});
  std::error_code unknown;
  if (!fs::exists(path, unknown))
    return error{folder + ": not a checkpoint: it has no manifest.json"};
  const auto text = text_of(path);
  if (!text) return text.failure();
  auto m = parse_manifest(*text);
  if (!m) return error{path + ": " + m.message()};
  const auto named = step_of(fs::path{folder}.filename().string());
  if (named && *named != m->step)
    return error{path + ": expected step " + std::to_string(*named) + ", got " +
                 std::to_string(m->step)};
  for (const auto& f : m->files)
    if (auto good = verify_file(folder, f, level); !good) return good.failure();
  return found_checkpoint{folder, std::move(*m)};
}

result<search> find_newest(const std::string& dir, verification level) {
  const auto steps = steps_in(dir);
  if (!steps) return steps.failure();
  search s;
  for (const auto step : *steps) {
    auto one = verify(path_in(dir, folder_name(step)), level);
    if (one) {
      s.newest = std::move(*one);
      return s;
    }
    s.skipped.push_back(one.message());
  }
  return s;
}

}  // namespace rrfp::checkpoint
