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

using namespace rrfp::fuzz;
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
  const int opened = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) ::_exit(127);
  ::close(opened);
}

/// In the child: runs the program's main() to its end.
[[noreturn]] void run_main(int channel, std::string& request, const sigset_t& mask) {
  ::close(channel);
  std::vector<char*> words;
  for (std::size_t at = 0; at < request.size(); at += std::string_view{&request[at]}.size() + 1)
    words.push_back(&request[at]);
  if (words.size() < 5 || ::chdir(words[0]) != 0) ::_exit(127);
  send_to(words[1], STDOUT_FILENO);
  send_to(words[2], STDERR_FILENO);
  const bool whole_end = std::string_view{words[3]} == whole_end_word;
  const rlimit memory{memory_bytes_max, memory_bytes_max}, no_core{0, 0},
      time{cpu_seconds_max, cpu_seconds_max + 1};
  ::setrlimit(RLIMIT_AS, &memory);
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::setrlimit(RLIMIT_CPU, &time);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  words.erase(words.begin(), words.begin() + 4);
  const int words_count = static_cast<int>(words.size());
  words.push_back(nullptr);
  const int code = real_main(words_count, words.data(), environ);
  if (whole_end) std::exit(code);
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
    const auto child = ::fork();
    if (child == 0) run_main(channel, request, before);
    const auto ended = wait_for(child, child_ended);
    if (::write(channel, &ended, sizeof ended) != sizeof ended) break;
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
