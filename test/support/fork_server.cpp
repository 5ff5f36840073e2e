/// Preloaded into a program: stops it before main(), and runs main() in a child process for each
/// request. So libtorch, which takes longest, is loaded once; the rest of the program is unchanged.
/// fork_server.hpp defines the protocol.
#include "fork_server.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace rrfp::test;
using main_function = int (*)(int, char**, char**);

main_function real_main = nullptr;

bool read_all(int from, void* to, std::size_t size) {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    const auto got = ::read(from, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

void send_to(const char* file, int descriptor) {
  const int opened = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) ::_exit(127);
  ::close(opened);
}

/// The words of a request.
struct start_request {
  explicit start_request(std::string& request) {
    for (std::size_t at = 0; at < request.size(); at += std::string_view{&request[at]}.size() + 1)
      words.push_back(&request[at]);
    if (words.size() < 5) ::_exit(127);
    const std::string_view kind{words[3]};
    whole_end = kind != fuzz_word;
    if (kind.starts_with(parent_prefix)) parent = std::atoi(words[3] + parent_prefix.size());
  }

  std::vector<char*> words;
  bool whole_end = false;
  pid_t parent = 0;
};

void set_limits() {
  const rlimit memory{memory_bytes_max, memory_bytes_max}, no_core{0, 0},
      time{cpu_seconds_max, cpu_seconds_max + 1};
  ::setrlimit(RLIMIT_AS, &memory);
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::setrlimit(RLIMIT_CPU, &time);
}

/// In the child: runs the program's main() to its end.
[[noreturn]] void run_main(start_request& s, const sigset_t& mask) {
  if (::chdir(s.words[0]) != 0) ::_exit(127);
  send_to(s.words[1], STDOUT_FILENO);
  send_to(s.words[2], STDERR_FILENO);
  auto first = s.words.begin() + 4;
  if (s.parent != 0) {
    ::clearenv();
    while (**first != '\0') ::putenv(*first++);
    ++first;
  } else {
    set_limits();
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  s.words.erase(s.words.begin(), first);
  const int words_count = static_cast<int>(s.words.size());
  s.words.push_back(nullptr);
  const int code = real_main(words_count, s.words.data(), environ);
  if (s.whole_end) std::exit(code);
  std::fflush(nullptr);
  ::_exit(code);
}

answer wait_for(pid_t child, const sigset_t& child_ended) {
  const timespec limit{seconds_max, 0};
  int status = 0;
  // The signal may come from an earlier child.
  while (::waitpid(child, &status, WNOHANG) == 0)
    if (::sigtimedwait(&child_ended, nullptr, &limit) < 0 && errno == EAGAIN) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return {ending::hung, 0};
    }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) return {ending::hung, 0};
  if (WIFSIGNALED(status)) return {ending::signal, WTERMSIG(status)};
  return {ending::code, WEXITSTATUS(status)};
}

/// In a child: starts the program in a child of its own, which the requester adopts, because it
/// reaps the children of its descendants.
[[noreturn]] void start_for_parent(int channel, start_request& s, const sigset_t& mask) {
  if (::fork() != 0) ::_exit(0);
  constexpr int waits_max = 100'000;  // ten seconds
  for (int waits = 0; ::getppid() != s.parent; ++waits) {
    if (waits == waits_max) ::_exit(127);
    ::usleep(100);
  }
  const std::int32_t pid = ::getpid();
  if (::write(channel, &pid, sizeof pid) != sizeof pid) ::_exit(127);
  ::close(channel);
  run_main(s, mask);
}

int serve(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  const int channel = std::atoi(std::getenv(channel_variable));
  ::unsetenv(channel_variable);
  ::unsetenv("LD_PRELOAD");
  sigset_t child_ended, before;
  ::sigemptyset(&child_ended);
  ::sigaddset(&child_ended, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child_ended, &before);
  for (std::uint32_t size = 0; read_all(channel, &size, sizeof size);) {
    std::string request(size, '\0');
    if (!read_all(channel, request.data(), size)) break;
    start_request s{request};
    const auto child = ::fork();
    if (child == 0 && s.parent != 0) start_for_parent(channel, s, before);
    if (child == 0) {
      ::close(channel);
      run_main(s, before);
    }
    const auto ended = wait_for(child, child_ended);
    if (s.parent == 0 && ::write(channel, &ended, sizeof ended) != sizeof ended) break;
  }
  ::_exit(0);
}

}  // namespace

extern "C" int __libc_start_main(main_function main, int argc, char** argv, void (*init)(),
                                 void (*fini)(), void (*loader_fini)(), void* stack_end) {
  using start_function =
      int (*)(main_function, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<start_function>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  real_main = main;
  const auto first = std::getenv(channel_variable) != nullptr ? serve : main;
  return start(first, argc, argv, init, fini, loader_fini, stack_end);
}
