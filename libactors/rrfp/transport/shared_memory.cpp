#include "shared_memory.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace rrfp::actors::ucx {

namespace {

/// UCX 1.13 takes 4208 KiB for each process: a receive queue and the first chunk of receive
/// buffers.
constexpr std::uint64_t process_bytes = std::uint64_t{4208} << 10;

std::string mebibytes(std::uint64_t bytes) {
  const auto tenths = bytes * 10 >> 20;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
}

/// Whether `tls` allows the transport whose memory is in files.
bool allows_posix_memory(const std::string& tls) {
  if (tls.empty()) return true;
  constexpr std::array<std::string_view, 4> names{"posix", "shm", "sm", "mm"};
  const bool is_named = std::any_of(names.begin(), names.end(), [&](auto name) {
    for (auto at = tls.find(name); at != tls.npos; at = tls.find(name, at + 1)) {
      const auto end = at + name.size();
      const auto is_edge = [&](char c) { return c == ',' || c == '^' || c == '\\' || c == ':'; };
      if ((at == 0 || is_edge(tls[at - 1])) && (end == tls.size() || is_edge(tls[end])))
        return true;
    }
    return false;
  });
  return tls.front() == '^' ? !is_named : is_named || tls.find("all") != tls.npos;
}

}  // namespace

status check_shared_memory(const std::string& tls, std::uint32_t processes) {
  const char* const set = std::getenv("UCX_TLS");
  if (!allows_posix_memory(set != nullptr ? set : tls)) return success();
  const char* const chosen = std::getenv("UCX_POSIX_DIR");
  const std::string folder = chosen != nullptr ? chosen : "/dev/shm";
  struct statvfs about {};
  if (::statvfs(folder.c_str(), &about) != 0 || ::access(folder.c_str(), W_OK) != 0)
    return error{"shared memory: cannot write in " + folder + ": " + std::strerror(errno) +
                 ": set transport.tls = \"tcp,self\" to do without"};
  const auto size = std::uint64_t{about.f_blocks} * about.f_frsize;
  const auto free = std::uint64_t{about.f_bavail} * about.f_frsize;
  // Other processes on this machine may have allocated theirs already.
  if (size >= processes * process_bytes && free >= process_bytes) return success();
  return error{"shared memory: " + folder + " has " + mebibytes(free) + " free of " +
               mebibytes(size) + ", expected at least " + mebibytes(processes * process_bytes) +
               " for " + std::to_string(processes) +
               (processes == 1 ? " node" : " nodes on this machine") +
               ": enlarge it (mount -o remount,size=1G " + folder +
               "; docker run --shm-size=1g), or set transport.tls = \"tcp,self\" to do without"};
}

}  // namespace rrfp::actors::ucx
