/// Starts a program as a fork of one process that has loaded its libraries: libtorch takes a
/// quarter of a second of processor time, longer than most programs of the tests.
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "fork_server.hpp"

namespace rrfp::test {

/// A program that waits before its main(), see fork_server.cpp. It ends when its channel is closed.
class fork_server {
 public:
  fork_server(const std::string& program, const std::string& library) : program_(program) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::runtime_error("socketpair");
    channel_ = ends[0];
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::fcntl(ends[1], F_SETFD, 0);
      ::setenv("LD_PRELOAD", library.c_str(), 1);
      ::setenv(channel_variable, std::to_string(ends[1]).c_str(), 1);
      ::execl(program.c_str(), program.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(ends[1]);
  }
  fork_server(const fork_server&) = delete;
  fork_server& operator=(const fork_server&) = delete;
  ~fork_server() {
    ::close(channel_);
    ::waitpid(pid_, nullptr, 0);
  }

  template <typename answered>
  answered ask(const std::vector<std::string>& words) const {
    std::string request;
    for (const auto& word : words) request.append(word).push_back('\0');
    const auto size = static_cast<std::uint32_t>(request.size());
    request.insert(0, reinterpret_cast<const char*>(&size), sizeof size);
    answered got;
    if (::send(channel_, request.data(), request.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(request.size()) ||
        ::recv(channel_, &got, sizeof got, MSG_WAITALL) != sizeof got)
      throw std::runtime_error(program_ + ": the fork server does not answer");
    return got;
  }

 private:
  std::string program_;
  int channel_ = -1;
  pid_t pid_ = -1;
};

/// Starts a program in a child process of this one, in its folder and environment; returns the
/// child's process id.
inline pid_t start_forked(const std::string& library, const std::vector<std::string>& arguments,
                          const std::string& out, const std::string& err) {
  // This process adopts the children of its descendants.
  static const int adopts = ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (adopts != 0) throw std::runtime_error("prctl");
  static std::map<std::string, fork_server> servers;
  const auto& server =
      servers.try_emplace(arguments.front(), arguments.front(), library).first->second;
  std::vector<std::string> words{std::filesystem::current_path().string(), out, err,
                                 std::string{parent_prefix} + std::to_string(::getpid())};
  for (auto** variable = environ; *variable != nullptr; ++variable)
    if (**variable != '\0') words.emplace_back(*variable);
  words.emplace_back();
  words.insert(words.end(), arguments.begin(), arguments.end());
  return server.ask<std::int32_t>(words);
}

}  // namespace rrfp::test
