#include <rrfp/checkpoint/ring.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <rrfp/files/atomic_file.hpp>

#include "folders.hpp"

namespace rrfp::checkpoint {

namespace fs = std::filesystem;

ring::ring(std::string dir, std::uint32_t keep, int lock)
    : dir_(std::move(dir)), keep_(keep), lock_(lock) {}

ring::~ring() { ::close(lock_); }

result<std::unique_ptr<ring>> ring::open(const std::string& dir, std::uint32_t keep) {
  const auto refused = [&](const std::string& why) { return error{dir + ": " + why}; };
  std::error_code failed;
  fs::create_directories(dir, failed);
  if (failed) return refused("cannot create the folder: " + failed.message());
  const int lock = ::open(path_in(dir, ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0) return refused(std::string{"cannot write: "} + std::strerror(errno));
  // Some shared file systems have no locks; there the user must keep runs in separate folders.
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(lock);
    return refused("another run is writing its checkpoints here");
  }
  return std::unique_ptr<ring>{new ring{dir, keep, lock}};
}

result<std::optional<std::string>> ring::set_aside() {
  const auto steps = steps_in(dir_);
  if (!steps) return steps.failure();
  if (steps->empty()) return std::optional<std::string>{};
  // Two runs within a second need different names.
  std::error_code failed;
  auto aside = path_in(dir_, "earlier-" + utc_now());
  for (int n = 2; fs::exists(aside, failed); ++n)
    aside = path_in(dir_, "earlier-" + utc_now() + "-" + std::to_string(n));
  fs::create_directory(aside, failed);
  for (const auto step : *steps)
    if (!failed)
      fs::rename(path_in(dir_, folder_name(step)), path_in(aside, folder_name(step)), failed);
  if (failed) return error{aside + ": cannot move earlier checkpoints here: " + failed.message()};
  if (auto synced = files::sync_folder(dir_); !synced) return synced.failure();
  return std::optional{aside};
}

status ring::begin(std::uint64_t step) {
  remove_leftovers();
  const auto folder = folder_of_save(dir_, step);
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return error{folder + ": cannot create the folder: " + failed.message()};
  return success();
}

status ring::commit(const manifest& m) {
  const auto folder = folder_of_save(dir_, m.step);
  for (const auto& f : m.files) {
    const auto path = path_in(folder, f.name);
    std::error_code unknown;
    const auto bytes = fs::file_size(path, unknown);
    if (unknown || bytes != f.bytes)
      return error{path + ": expected the " + std::to_string(f.bytes) +
                   " bytes that its rank wrote: do all nodes share this folder?"};
  }
  if (auto written =
          files::write_atomically(path_in(folder, std::string{manifest_name}), to_json(m));
      !written)
    return written;
  const auto place = path_in(dir_, folder_name(m.step));
  std::error_code failed;
  // This step may already have a checkpoint: one that was not usable, or one of an earlier run.
  if (fs::exists(fs::symlink_status(place, failed))) remove(place);
  fs::rename(folder, place, failed);
  if (failed) return error{place + ": cannot rename the new checkpoint: " + failed.message()};
  if (auto synced = files::sync_folder(dir_); !synced) return synced;
  remove_older(m.step);
  return success();
}

void ring::remove_older(std::uint64_t good) {
  // Newer checkpoints that were not usable stay, so that users can inspect them.
  const auto steps = steps_in(dir_);
  if (!steps) return;
  std::uint32_t kept = 0;
  for (const auto step : *steps)
    if (step <= good && ++kept > keep_) remove(path_in(dir_, folder_name(step)));
}

void ring::abandon(std::uint64_t step) {
  std::error_code ignored;
  fs::remove_all(folder_of_save(dir_, step), ignored);
}

void ring::remove_leftovers() {
  std::error_code failed;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator at{dir_, failed}; !failed && at != fs::directory_iterator{};
       at.increment(failed))
    if (is_leftover(at->path().filename().string())) leftovers.push_back(at->path());
  for (const auto& path : leftovers) fs::remove_all(path, failed);
}

void ring::remove(const std::string& folder) {
  const auto away = path_in(dir_, "." + fs::path{folder}.filename().string() + ".old.tmp");
  std::error_code failed;
  fs::remove_all(away, failed);
  fs::rename(folder, away, failed);
  if (!failed) fs::remove_all(away, failed);
}

}  // namespace rrfp::checkpoint
