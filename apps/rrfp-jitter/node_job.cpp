#include "node_job.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <rrfp/base/exit_code.hpp>
#include <rrfp/io/atomic_file.hpp>

namespace rrfp::apps {

namespace {

namespace fs = std::filesystem;

/// The program in the folder of this one: rrfp-node with the keys of studies.
std::string path_of_node() {
  std::error_code unknown;
  return (fs::read_symlink("/proc/self/exe", unknown).parent_path() / "rrfp-jitter-node").string();
}

[[noreturn]] void become_launcher(const std::vector<std::string>& arguments, pid_t parent,
                                  const std::string& output) {
  // The job must not outlive this program.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(exit_failed);
  // Ctrl-C lets running cells finish.
  ::setpgid(0, 0);
  const int to = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (to < 0 || ::dup2(to, STDOUT_FILENO) < 0 || ::dup2(to, STDERR_FILENO) < 0)
    ::_exit(exit_failed);
  std::vector<char*> argv;
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::dprintf(STDERR_FILENO, "%s: cannot be started: %s\n", argv[0], std::strerror(errno));
  ::_exit(exit_failed);
}

std::string text_of(const std::string& path) {
  std::ifstream file{path};
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

node_job::node_job(const std::string& folder)
    : log_path_(folder + "/log.jsonl"), output_path_(folder + "/output") {}

result<std::unique_ptr<node_job>> node_job::start(const job::job& j, std::uint32_t nodes,
                                                  const std::string& folder) {
  const auto file = folder + "/job.toml";
  if (auto written = files::write_atomically(file, job::to_toml(j)); !written)
    return written.failure();
  std::unique_ptr<node_job> made{new node_job{folder}};
  const std::vector<std::string> arguments{
      path_of_node(),        "run",    file,           "--local-nodes",
      std::to_string(nodes), "--json", made->log_path_};
  const auto parent = ::getpid();
  made->launcher_ = ::fork();
  if (made->launcher_ == 0) become_launcher(arguments, parent, made->output_path_);
  if (made->launcher_ < 0)
    return error{std::string{"cannot start rrfp-jitter-node: "} + std::strerror(errno),
                 error_kind::failed};
  return made;
}

node_job::~node_job() {
  if (launcher_ <= 0 || is_over()) return;
  // Its nodes die with it.
  ::kill(launcher_, SIGKILL);
  ::waitpid(launcher_, &state_, 0);
}

std::vector<std::string> node_job::new_lines() {
  std::ifstream file{log_path_};
  std::vector<std::string> lines;
  if (!file.seekg(read_)) return lines;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    read_ = file.tellg();
    lines.push_back(std::move(line));
  }
  return lines;
}

bool node_job::is_over() {
  if (!is_over_) is_over_ = ::waitpid(launcher_, &state_, WNOHANG) == launcher_;
  return is_over_;
}

status node_job::outcome() const {
  const int code = WIFEXITED(state_) ? WEXITSTATUS(state_) : exit_failed;
  if (code == exit_done) return success();
  auto text = text_of(output_path_);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const auto line = text.substr(std::min(text.rfind('\n') + 1, text.size()));
  return error{
      line.empty() ? "rrfp-jitter-node ended with exit code " + std::to_string(code) : line,
      code == exit_bad_input ? error_kind::bad_input : error_kind::failed};
}

std::optional<pid_t> node_job::pid_of(std::uint32_t node) const {
  const auto launcher = std::to_string(launcher_);
  std::istringstream children{text_of("/proc/" + launcher + "/task/" + launcher + "/children")};
  for (pid_t pid = 0; children >> pid;) {
    auto words = text_of("/proc/" + std::to_string(pid) + "/cmdline");
    const auto wanted = std::string("\0--node-rank\0", 13) + std::to_string(node) + '\0';
    if (words.find(wanted) != std::string::npos) return pid;
  }
  return std::nullopt;
}

}  // namespace rrfp::apps
