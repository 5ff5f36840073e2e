/// Runs a program and keeps its output.
#pragma once

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "slowdown.hpp"
#ifdef RRFP_FORK_SERVER
#include "forked_program.hpp"
#endif

namespace rrfp::test {

/// A temporary folder, deleted after the test.
class scratch_folder {
 public:
  scratch_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "rrfp-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline std::string text_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream{file}.rdbuf();
  return text.str();
}

/// Also folders.
inline std::size_t count_files(const std::string& folder) {
  const std::filesystem::directory_iterator all{folder};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

struct outcome {
  int code = -1;  ///< exit code, or 128 + signal
  std::string out;
  std::string err;
  double seconds = 0;
};

/// A running program. The destructor kills it if it still runs.
///
/// With RRFP_FORK_SERVER, a program that loads libtorch starts as a fork. One behind another
/// program such as /usr/bin/env, or started by rrfp-node itself, starts as users start it.
class program {
 public:
  explicit program(const std::vector<std::string>& arguments) {
    const auto out = folder_ / "out";
    const auto err = folder_ / "err";
#ifdef RRFP_FORK_SERVER
    if (arguments.front().ends_with("-node")) {
      pid_ = start_forked(RRFP_FORK_SERVER, arguments, out, err);
      return;
    }
#endif
    std::vector<char*> argv;
    for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    // Between fork and exec no signal may run the test's own handlers.
    sigset_t all, before;
    sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, &before);
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ > 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid_ == 0) {
      for (const int number : {SIGINT, SIGTERM}) ::signal(number, SIG_DFL);
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      if (std::freopen(out.c_str(), "w", stdout) == nullptr) ::_exit(127);
      if (std::freopen(err.c_str(), "w", stderr) == nullptr) ::_exit(127);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void signal(int number) const { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  /// The output so far.
  std::string out() const { return text_of(folder_ / "out"); }
  std::string err() const { return text_of(folder_ / "err"); }

  outcome wait(std::chrono::seconds limit = std::chrono::seconds{240}) {
    const auto begun = std::chrono::steady_clock::now();
    int state = 0;
    while (::waitpid(pid_, &state, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() - begun > limit * slowdown) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, &state, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    pid_ = -1;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    return {WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state), out(), err(),
            took.count()};
  }

 private:
  scratch_folder folder_;
  pid_t pid_ = -1;
};

inline outcome run_program(const std::vector<std::string>& arguments) {
  return program{arguments}.wait();
}

}  // namespace rrfp::test
