#include <rrfp/files/whole_file.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <rrfp/schedule/check.hpp>

namespace rrfp::files {

namespace fs = std::filesystem;

namespace {

/// One call writes no more on Linux.
constexpr std::size_t write_bytes_max = std::size_t{1} << 30;
/// Names tried, should others of this form be there.
constexpr int names_max = 100;

/// Two files of this process have two names. Those of another process on another machine, which may
/// have the same number, are seen when the file is made.
std::string name_beside(const std::string& path) {
  static std::atomic<std::uint64_t> made = 0;
  return path + "." + std::to_string(::getpid()) + "-" + std::to_string(++made) + ".tmp";
}

}  // namespace

whole_file::whole_file(std::string path, std::string beside, int opened)
    : path_(std::move(path)), beside_(std::move(beside)), opened_(opened) {}

whole_file::~whole_file() {
  if (opened_ >= 0) ::close(opened_);
  if (!in_place_) std::remove(beside_.c_str());
}

error whole_file::failed(const std::string& why) const {
  return error{path_ + ": cannot write: " + why};
}

result<std::unique_ptr<whole_file>> whole_file::create(const std::string& path) {
  const auto refused = [&](const std::string& why) {
    return error{path + ": cannot write: " + why};
  };
  // Renaming would put a file in the place of a device.
  std::error_code unknown;
  const auto there = fs::status(path, unknown);
  if (fs::is_directory(there)) return refused("expected a file's name, got a folder");
  if (fs::exists(there) && !fs::is_regular_file(there))
    return refused("expected a file's name, got a device or pipe");
  for (int tried = 1;; ++tried) {
    auto beside = name_beside(path);
    // What is there already belongs to somebody else.
    const int opened = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (opened >= 0)
      return std::unique_ptr<whole_file>{new whole_file{path, std::move(beside), opened}};
    if (errno != EEXIST || tried == names_max) return refused(std::strerror(errno));
  }
}

status whole_file::write(std::span<const std::byte> bytes) {
  RRFP_CHECK(opened_ >= 0, "a file that is not committed yet");
  while (!bytes.empty()) {
    const auto wrote = ::write(opened_, bytes.data(), std::min(bytes.size(), write_bytes_max));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return failed(std::strerror(errno));
    if (wrote == 0) return failed("the system took no byte more");
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return success();
}

status whole_file::commit() {
  RRFP_CHECK(opened_ >= 0, "a file is committed once");
  // Some file systems find out only here that there is no room.
  const bool synced = ::fsync(opened_) == 0;
  const int why = errno;
  const bool closed = ::close(std::exchange(opened_, -1)) == 0;
  if (!synced) return failed(std::strerror(why));
  if (!closed || std::rename(beside_.c_str(), path_.c_str()) != 0)
    return failed(std::strerror(errno));
  in_place_ = true;
  const auto folder = fs::path{path_}.parent_path();
  return sync_folder(folder.empty() ? "." : folder.string());
}

status write_whole(const std::string& path, std::string_view text) {
  auto file = whole_file::create(path);
  if (!file) return file.failure();
  if (auto written = (*file)->write(std::as_bytes(std::span{text})); !written) return written;
  return (*file)->commit();
}

status check_writable(const std::string& path) {
  const auto made = whole_file::create(path);
  return made ? success() : status{made.failure()};
}

status sync_folder(const std::string& folder) {
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = opened >= 0 && ::fsync(opened) == 0;
  const int why = errno;
  if (opened >= 0) ::close(opened);
  // There are file systems that cannot sync a folder, and need not.
  if (synced || (opened >= 0 && (why == EINVAL || why == ENOTSUP))) return success();
  return error{folder + ": cannot sync the folder: " + std::strerror(why)};
}

}  // namespace rrfp::files
