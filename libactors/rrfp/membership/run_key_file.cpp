#include "run_key_file.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>

#include "sockets.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace rrfp::actors::control {

namespace {

/// Each attempt fails only if another job removes or creates the file at that moment.
constexpr int attempts_max = 16;

bool is_private(const char* folder) {
  struct stat info {};
  return ::stat(folder, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0 && ::access(folder, W_OK | X_OK) == 0;
}

/// Why the file may not be the key; empty if it may.
std::string problem_of(const struct stat& info) {
  if (info.st_uid != ::geteuid())
    return fmt::format("expected a file of user {}, got one of user {}", ::geteuid(), info.st_uid);
  if (!S_ISREG(info.st_mode)) return "expected a regular file";
  if ((info.st_mode & 07777) != 0600)
    return fmt::format("expected mode 0600, got {:04o}", info.st_mode & 07777);
  if (info.st_size != static_cast<off_t>(drawn_key_bytes))
    return fmt::format("expected {} bytes, got {}", drawn_key_bytes, info.st_size);
  return {};
}

}  // namespace

std::string key_folder() {
  const char* const own = std::getenv("XDG_RUNTIME_DIR");
  return own != nullptr && *own == '/' && is_private(own) ? own : "/tmp";
}

run_key_file::run_key_file(std::uint16_t port) : run_key_file(key_folder(), port) {}

run_key_file::run_key_file(const std::string& folder, std::uint16_t port)
    : path_(fmt::format("{}/rrfp-{}-{}.key", folder, ::geteuid(), port)) {}

result<std::optional<secret>> run_key_file::read() const {
  const auto wrong = [&](const std::string& problem) {
    return error{
        fmt::format("key file '{}': {}: remove it, or set transport.key_file", path_, problem)};
  };
  struct stat info {};
  // Before it is opened, so that the message about another user's file names the user.
  if (::lstat(path_.c_str(), &info) == 0)
    if (const auto problem = problem_of(info); !problem.empty()) return wrong(problem);
  const file_descriptor fd{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (!fd.open() && errno == ENOENT) return std::optional<secret>{};
  if (!fd.open() || ::fstat(fd.get(), &info) != 0) return wrong(std::strerror(errno));
  if (const auto problem = problem_of(info); !problem.empty()) return wrong(problem);
  auto key = read_descriptor(fd.get());
  if (!key) return wrong(key.message());
  return std::optional<secret>{*std::move(key)};
}

status run_key_file::create() const {
  const auto key = draw_key();
  if (!key) return key.failure();
  // Linked when it is complete, so that no other node reads a part of it.
  auto beside = path_ + ".XXXXXX";
  const file_descriptor fd{::mkostemp(beside.data(), O_CLOEXEC)};  // with mode 0600
  const auto& bytes = key->bytes();
  bool made = fd.open() &&
              ::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  made = made && (::link(beside.c_str(), path_.c_str()) == 0 || errno == EEXIST);
  const error failed{fmt::format("cannot create key file '{}': {}", path_, std::strerror(errno))};
  if (fd.open()) ::unlink(beside.c_str());
  return made ? success() : status{failed};
}

result<secret> run_key_file::read_or_create() {
  for (int i = 0; i < attempts_max; ++i) {
    auto found = read();
    if (!found) return found.failure();
    if (*found) {
      last_.emplace(std::vector<unsigned char>{(*found)->bytes()});
      return *std::move(*found);
    }
    if (const auto created = create(); !created) return created.failure();
  }
  return error{fmt::format("key file '{}': other jobs remove it again and again", path_)};
}

bool run_key_file::has_changed() const {
  const auto found = read();
  return found && *found != last_;
}

void run_key_file::remove() const {
  if (const auto found = read(); found && *found && *found == last_) ::unlink(path_.c_str());
}

}  // namespace rrfp::actors::control
