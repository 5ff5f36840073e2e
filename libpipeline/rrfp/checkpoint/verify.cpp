#include <filesystem>

#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/checkpoint/ring.hpp>
#include <rrfp/io/text_file.hpp>

#include "folders.hpp"

namespace rrfp::checkpoint {

namespace fs = std::filesystem;

namespace {

status verify_file(const std::string& folder, const file_entry& f, verification level) {
  const auto path = path_in(folder, f.name);
  std::error_code unknown;
  auto bytes = fs::file_size(path, unknown);
  if (unknown) return error{path + ": " + unknown.message()};
  std::optional<std::uint64_t> xxh64;
  if (level == verification::checksums && bytes == f.bytes) {
    const auto sum = sum_of_file(path);
    if (!sum) return sum.failure();
    bytes = sum->bytes;
    xxh64 = sum->xxh64;
  }
  switch (judge(f, bytes, xxh64)) {
    case file_verdict::intact: return success();
    case file_verdict::other_size:
      return error{path + ": expected " + std::to_string(f.bytes) + " bytes, got " +
                   std::to_string(bytes)};
    case file_verdict::altered: break;
  }
  return error{path + ": altered: expected xxh64 " + hex(f.xxh64) + ", got " +
               hex(xxh64.value_or(0))};
}

}  // namespace

std::string path_in(const std::string& dir, const std::string& name) {
  return (fs::path{dir} / name).string();
}

std::string file_name(stage_id stage, rank_id rank) {
  char name[64];
  std::snprintf(name, sizeof name, "stage-%03u-rank-%02u.safetensors", stage.value(), rank.value());
  return name;
}

std::string folder_of_save(const std::string& dir, std::uint64_t step) {
  return path_in(dir, temporary_name(step));
}

result<listing> names_in(const std::string& dir) {
  std::error_code failed;
  listing names;
  if (!fs::exists(dir, failed) && !failed) return names;
  fs::directory_iterator at{dir, failed};
  for (; !failed && at != fs::directory_iterator{}; at.increment(failed))
    names.push_back(at->path().filename().string());
  if (failed) return error{dir + ": cannot read the folder: " + failed.message()};
  return names;
}

result<found_checkpoint> verify(const std::string& folder, verification level) {
  const auto path = path_in(folder, std::string{manifest_name});
  std::error_code unknown;
  if (!fs::exists(path, unknown))
    return error{folder + ": not a checkpoint: it has no manifest.json"};
  const auto text = io::read_text_file(path, manifest_bytes_max, "a manifest");
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
  const auto names = names_in(dir);
  if (!names) return names.failure();
  search s;
  for (const auto step : steps_of(*names)) {
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
