#include "fuzz_target.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "program.hpp"

namespace rrfp::fuzz {

fuzz_target::fuzz_target(const std::string& program, const std::string& fork_server)
    : program_(program) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("socketpair");
  channel_ = ends[0];
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    ::fcntl(ends[1], F_SETFD, 0);
    ::setenv("LD_PRELOAD", fork_server.c_str(), 1);
    ::setenv(channel_variable, std::to_string(ends[1]).c_str(), 1);
    ::execl(program.c_str(), program.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
}

fuzz_target::~fuzz_target() {
  ::close(channel_);
  ::waitpid(pid_, nullptr, 0);
}

outcome fuzz_target::run(const std::string& folder, const std::vector<std::string>& arguments,
                         const std::string& err, bool whole_end) {
  std::string request;
  const auto add = [&](const std::string& word) { request.append(word).push_back('\0'); };
  const std::string end{whole_end ? whole_end_word : "quick"};
  for (const auto& word : {folder, std::string{"/dev/null"}, err, end, program_}) add(word);
  for (const auto& word : arguments) add(word);
  const auto size = static_cast<std::uint32_t>(request.size());
  request.insert(0, reinterpret_cast<const char*>(&size), sizeof size);
  answer ended;
  if (::send(channel_, request.data(), request.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(request.size()) ||
      ::recv(channel_, &ended, sizeof ended, MSG_WAITALL) != sizeof ended)
    throw std::runtime_error(program_ + ": the fork server does not answer");
  return {ended, test::text_of(err)};
}

}  // namespace rrfp::fuzz
