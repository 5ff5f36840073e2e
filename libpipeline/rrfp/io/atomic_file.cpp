#include <rrfp/io/atomic_file.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::io {

namespace fs = std::filesystem;

namespace {

/// Linux writes at most about 2 GiB in one call.
constexpr std::size_t write_bytes_max = std::size_t{1} << 30;
/// Temporary names to try before giving up.
constexpr int names_max = 100;

/// Unique within this process. A process on another machine may have the same PID; O_EXCL detects
/// that collision.
std::string new_temporary_path(const std::string& path) {
  static std::atomic<std::uint64_t> created = 0;
  return path + "." + std::to_string(::getpid()) + "-" + std::to_string(++created) + ".tmp";
}

error cannot_write(const std::string& path, const std::string& why) {
  return error{path + ": cannot write: " + why, error_kind::failed};
}

/// The errno of the failure, or 0.
int sync(const std::string& path, int how) {
  const int opened = ::open(path.c_str(), how | O_CLOEXEC);
  if (opened < 0) return errno;
  const int why = ::fsync(opened) == 0 ? 0 : errno;
  ::close(opened);
  return why;
}

}  // namespace

atomic_file::atomic_file(std::string path, std::string temporary_path, int opened)
    : path_(std::move(path)), temporary_path_(std::move(temporary_path)), opened_(opened) {}

atomic_file::~atomic_file() {
  if (opened_ >= 0) ::close(opened_);
  if (!committed_) std::remove(temporary_path_.c_str());
}

result<std::unique_ptr<atomic_file>> atomic_file::create(const std::string& path) {
  // The rename would replace a device by a regular file.
  std::error_code unknown;
  const auto there = fs::status(path, unknown);
  if (fs::is_directory(there)) return cannot_write(path, "expected a file name, got a folder");
  if (fs::exists(there) && !fs::is_regular_file(there))
    return cannot_write(path, "expected a file name, got a device or pipe");
  for (int tried = 1;; ++tried) {
    auto temporary = new_temporary_path(path);
    // An existing file of this name belongs to another process.
    const int opened = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (opened >= 0)
      return std::unique_ptr<atomic_file>{new atomic_file{path, std::move(temporary), opened}};
    if (errno != EEXIST || tried == names_max) return cannot_write(path, std::strerror(errno));
  }
}

status atomic_file::write(std::span<const std::byte> bytes) {
  RRFP_CHECK(opened_ >= 0, "write() after commit()");
  while (!bytes.empty()) {
    const auto wrote = ::write(opened_, bytes.data(), std::min(bytes.size(), write_bytes_max));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return cannot_write(path_, std::strerror(errno));
    if (wrote == 0) return cannot_write(path_, "the system call wrote 0 bytes");
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return success();
}

status atomic_file::commit() {
  RRFP_CHECK(opened_ >= 0, "commit() called twice");
  // Some file systems report a full disk only here.
  const bool synced = ::fsync(opened_) == 0;
  const int why = errno;
  const bool closed = ::close(std::exchange(opened_, -1)) == 0;
  if (!synced) return cannot_write(path_, std::strerror(why));
  if (!closed || std::rename(temporary_path_.c_str(), path_.c_str()) != 0)
    return cannot_write(path_, std::strerror(errno));
  committed_ = true;
  const auto folder = fs::path{path_}.parent_path();
  return sync_folder(folder.empty() ? "." : folder.string());
}

status write_atomically(const std::string& path, std::string_view text) {
  auto file = atomic_file::create(path);
  if (!file) return file.failure();
  if (auto written = (*file)->write(std::as_bytes(std::span{text})); !written) return written;
  return (*file)->commit();
}

status check_writable(const std::string& path) {
  const auto made = atomic_file::create(path);
  return made ? success() : error{made.message()};
}

status write_unsynced(const std::string& path, std::string_view text) {
  errno = 0;
  std::ofstream out{path, std::ios::binary};
  out << text;
  out.close();
  if (out) return success();
  return cannot_write(path, std::strerror(errno));
}

status sync_file(const std::string& path) {
  const int why = sync(path, O_RDONLY);
  return why == 0 ? success() : cannot_write(path, std::strerror(why));
}

status sync_folder(const std::string& folder) {
  const int why = sync(folder, O_RDONLY | O_DIRECTORY);
  // Some file systems do not support syncing a folder and do not need it.
  if (why == 0 || why == EINVAL || why == ENOTSUP) return success();
  return error{folder + ": cannot sync the folder: " + std::strerror(why), error_kind::failed};
}

}  // namespace rrfp::io
