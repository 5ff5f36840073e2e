/// Checks that a call aborts the process, and its message; the call runs in a forked child.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace rrfp::testing {

/// What `call` printed to stderr before it aborted; "it did not abort" if it did not abort.
template <class Call>
std::string abort_message(Call call) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const auto child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // Catch would report the abort as a failure of its own
    dup2(ends[1], STDERR_FILENO);
    call();
    _exit(0);
  }
  close(ends[1]);
  std::string words;
  char buffer[256];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    words.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? words : "it did not abort";
}

}  // namespace rrfp::testing
