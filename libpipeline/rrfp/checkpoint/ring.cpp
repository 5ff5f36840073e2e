#include <rrfp/checkpoint/ring.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include <rrfp/io/atomic_file.hpp>

#include "folders.hpp"

namespace rrfp::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr auto other_run = "another run is writing its checkpoints here";

/// Locks the file unless another process has locked it for longer than `patience`.
bool is_locked_by_another(int file, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds interval{20};
  const auto end = std::chrono::steady_clock::now() + patience;
  while (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() >= end) return true;
    std::this_thread::sleep_for(interval);
  }
  return false;
}

/// Carries out the operations of the core.
struct executor {
  const std::string& dir;
  const std::string& manifest;

  std::string path(const std::string& name) const {
    return name.empty() ? dir : path_in(dir, name);
  }

  status operator()(const file_operation::check_size& o) const {
    std::error_code unknown;
    const auto bytes = fs::file_size(path(o.path), unknown);
    if (!unknown && bytes == o.bytes) return success();
    return error{path(o.path) + ": expected the " + std::to_string(o.bytes) +
                 " bytes that its rank wrote: do all nodes share this folder?"};
  }
  status operator()(const file_operation::make_folder& o) const {
    std::error_code failed;
    fs::create_directories(path(o.path), failed);
    return failed ? error{path(o.failure) + ": " + failed.message()} : success();
  }
  status operator()(const file_operation::write_manifest& o) const {
    return io::write_unsynced(path(o.path), manifest);
  }
  status operator()(const file_operation::sync_file& o) const {
    return io::sync_file(path(o.path));
  }
  status operator()(const file_operation::sync_folder& o) const {
    return io::sync_folder(path(o.path));
  }
  status operator()(const file_operation::rename& o) const {
    std::error_code failed;
    fs::rename(path(o.from), path(o.to), failed);
    if (!failed || o.failure.empty()) return success();
    return error{path(o.failure) + ": " + failed.message()};
  }
  status operator()(const file_operation::remove& o) const {
    std::error_code ignored;
    fs::remove_all(path(o.path), ignored);
    return success();
  }
};

}  // namespace

ring::ring(std::string dir, std::uint32_t keep, int lock, bool is_locked)
    : dir_(std::move(dir)), keep_(keep), lock_(lock), is_locked_(is_locked) {}

ring::~ring() { ::close(lock_); }

result<std::unique_ptr<ring>> ring::open(const std::string& dir, std::uint32_t keep,
                                         std::chrono::milliseconds patience, if_locked then) {
  const auto refused = [&](const std::string& why) { return error{dir + ": " + why}; };
  std::error_code failed;
  fs::create_directories(dir, failed);
  if (failed) return refused("cannot create the folder: " + failed.message());
  const int lock = ::open(path_in(dir, ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0) return refused(std::string{"cannot write: "} + std::strerror(errno));
  // Some shared file systems have no locks; there the user must keep runs in separate folders.
  const bool is_locked = !is_locked_by_another(lock, patience);
  if (!is_locked && then == if_locked::fail) {
    ::close(lock);
    return refused(other_run);
  }
  return std::unique_ptr<ring>{new ring{dir, keep, lock, is_locked}};
}

status ring::carry_out(const plan& operations, const std::string& manifest) const {
  for (const auto& o : operations)
    if (auto done = std::visit(executor{dir_, manifest}, o); !done) return done;
  return success();
}

listing ring::known_names() const {
  auto names = names_in(dir_);
  return names ? std::move(*names) : listing{};
}

result<std::optional<std::string>> ring::set_aside() {
  const auto names = names_in(dir_);
  if (!names) return names.failure();
  const auto aside = plan_setting_aside(*names, utc_now());
  if (aside.folder.empty()) return std::optional<std::string>{};
  if (auto moved = carry_out(aside.operations); !moved) return moved.failure();
  return std::optional{path_in(dir_, aside.folder)};
}

status ring::begin(std::uint64_t step) {
  if (!is_locked_) is_locked_ = !is_locked_by_another(lock_, {});
  if (!is_locked_) return error{dir_ + ": " + other_run};
  return carry_out(plan_begin(known_names(), step));
}

status ring::commit(const manifest& m) {
  return carry_out(plan_commit(known_names(), m.step, m.files, keep_), to_json(m));
}

void ring::remove_older(std::uint64_t good) {
  if (!is_locked_) return;
  static_cast<void>(carry_out(plan_removal(known_names(), good, keep_)));
}

void ring::abandon(std::uint64_t step) {
  if (is_locked_) static_cast<void>(carry_out(plan_abandon(step)));
}

}  // namespace rrfp::checkpoint
