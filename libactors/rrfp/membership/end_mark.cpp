#include "end_mark.hpp"

#include <ctime>

#include <fmt/format.h>
#include <sys/stat.h>

#include "run_key_file.hpp"
#include "sockets.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace rrfp::actors::control {

end_mark::end_mark(std::uint16_t port, std::uint64_t job_hash)
    : path_(fmt::format("{}/rrfp-{}-{}-{:016x}.over", key_folder(), ::geteuid(), port, job_hash)) {}

void end_mark::set() const {
  const file_descriptor fd{
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (fd.open()) ::futimens(fd.get(), nullptr);
}

bool end_mark::is_set(std::chrono::milliseconds age_max) const {
  struct stat info {};
  if (::lstat(path_.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid())
    return false;
  const auto age = std::chrono::seconds{std::time(nullptr) - info.st_mtim.tv_sec};
  return age >= std::chrono::seconds{0} && age <= age_max;
}

void end_mark::remove() const { ::unlink(path_.c_str()); }

}  // namespace rrfp::actors::control
