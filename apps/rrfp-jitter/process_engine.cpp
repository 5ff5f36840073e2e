#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include <rrfp/base/exit_code.hpp>
#include <rrfp/io/atomic_file.hpp>
#include <rrfp/io/parse_json.hpp>

#include "run_cells.hpp"

namespace rrfp::apps {

namespace {

namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;
using experiment::cell;
using experiment::fault_kind;
using experiment::outcome;

constexpr std::chrono::milliseconds poll_period{5};
/// A job that reports nothing for so long beyond its own limit hangs.
constexpr double patience_s = 120;

class scratch_folder {
 public:
  scratch_folder() {
    const auto* const parent = std::getenv("TMPDIR");
    path_ = (fs::path{parent != nullptr ? parent : "/tmp"} / "rrfp-jitter-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string text_of(const std::string& path) {
  std::ifstream file{path};
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

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

/// A job of several rrfp-jitter-node processes that the first of them starts on this machine.
class node_job {
 public:
  /// `folder` gets the job file, the JSON log and what the nodes print.
  explicit node_job(const std::string& folder)
      : file_(folder + "/job.toml"),
        log_path_(folder + "/log.jsonl"),
        output_path_(folder + "/output") {}
  /// Kills all processes that still run.
  ~node_job() {
    if (launcher_ <= 0 || is_over()) return;
    // Its nodes die with it.
    ::kill(launcher_, SIGKILL);
    ::waitpid(launcher_, &state_, 0);
  }
  node_job(const node_job&) = delete;
  node_job& operator=(const node_job&) = delete;

  /// Starts the rrfp-jitter-node beside this program.
  status start(const job::job& j, std::uint32_t nodes) {
    if (auto written = io::write_atomically(file_, job::to_toml(j)); !written) return written;
    const std::vector<std::string> arguments{
        path_of_node(), "run", file_, "--local-nodes", std::to_string(nodes), "--json", log_path_};
    const auto parent = ::getpid();
    launcher_ = ::fork();
    if (launcher_ == 0) become_launcher(arguments, parent, output_path_);
    if (launcher_ > 0) return success();
    return error{std::string{"cannot start rrfp-jitter-node: "} + std::strerror(errno),
                 error_kind::failed};
  }

  /// The complete lines that the JSON log got since the last call.
  std::vector<std::string> new_lines() {
    std::ifstream file{log_path_};
    std::vector<std::string> lines;
    if (!file.seekg(read_)) return lines;
    for (std::string line; std::getline(file, line) && !file.eof();) {
      read_ = file.tellg();
      lines.push_back(std::move(line));
    }
    return lines;
  }
  bool is_over() {
    if (!is_over_) is_over_ = ::waitpid(launcher_, &state_, WNOHANG) == launcher_;
    return is_over_;
  }
  /// Once it is over. The error is the last line that the nodes printed, of the kind of the exit
  /// code.
  status outcome() const {
    const int code = WIFEXITED(state_) ? WEXITSTATUS(state_) : exit_failed;
    if (code == exit_done) return success();
    auto text = text_of(output_path_);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const auto line = text.substr(std::min(text.rfind('\n') + 1, text.size()));
    return error{
        line.empty() ? "rrfp-jitter-node ended with exit code " + std::to_string(code) : line,
        code == exit_bad_input ? error_kind::bad_input : error_kind::failed};
  }
  /// The process of a node; nothing while there is none.
  std::optional<pid_t> pid_of(std::uint32_t node) const {
    const auto launcher = std::to_string(launcher_);
    std::istringstream children{text_of("/proc/" + launcher + "/task/" + launcher + "/children")};
    for (pid_t pid = 0; children >> pid;) {
      auto words = text_of("/proc/" + std::to_string(pid) + "/cmdline");
      const auto wanted = std::string("\0--node-rank\0", 13) + std::to_string(node) + '\0';
      if (words.find(wanted) != std::string::npos) return pid;
    }
    return std::nullopt;
  }

 private:
  const std::string file_;
  const std::string log_path_;
  const std::string output_path_;
  pid_t launcher_ = -1;
  int state_ = 0;
  bool is_over_ = false;
  std::streamoff read_ = 0;  ///< of the log
};

/// What the JSON log of a job has told.
struct progress_of_job {
  std::map<std::uint64_t, double> step_ms;           ///< as reported, by number from 1
  std::map<std::uint64_t, clock::time_point> ended;  ///< when that was first seen
  nlohmann::json summary;
};

void record(const std::string& line, progress_of_job& to) {
  auto parsed = parse_json(line);
  // A node that was killed may leave half a line, which another one continues.
  if (std::holds_alternative<json_fault>(parsed)) return;
  auto& event = std::get<nlohmann::json>(parsed);
  const auto kind = event.value("event", "");
  if (kind == "summary") to.summary = std::move(event);
  if (kind != "step") return;
  const auto step = event.at("step").get<std::uint64_t>();
  to.step_ms[step] = event.at("step_ms").get<double>();
  to.ended.try_emplace(step, clock::now());
}

/// Makes the fault of a cell happen once.
class fault {
 public:
  fault(const cell& c, const node_job& job) : what_(c.fault), job_(job) {}

  void advance(std::uint64_t complete_steps) {
    if (what_.kind == fault_kind::none || complete_steps < what_.step) return;
    if (stopped_ != 0) {
      if (clock::now() < until_) return;
      ::kill(stopped_, SIGCONT);
      what_.kind = fault_kind::none;
      return;
    }
    const auto pid = job_.pid_of(what_.node);
    if (!pid) return;  // it starts
    if (what_.kind == fault_kind::kill) {
      ::kill(*pid, SIGKILL);
      what_.kind = fault_kind::none;
      return;
    }
    ::kill(*pid, SIGSTOP);
    stopped_ = *pid;
    until_ = clock::now() + std::chrono::microseconds{std::llround(what_.seconds * 1e6)};
  }
  bool is_over() const { return what_.kind == fault_kind::none; }

 private:
  experiment::node_fault what_;
  const node_job& job_;
  pid_t stopped_ = 0;
  clock::time_point until_;
};

/// The times of the steps, in modelled milliseconds.
result<std::vector<double>> times_of(const cell& c, const progress_of_job& seen) {
  std::vector<double> step_ms;
  for (const auto& [step, ms] : seen.step_ms) {
    const auto before = seen.ended.find(step - 1);
    const bool is_observed = c.fault.kind != fault_kind::none && before != seen.ended.end();
    const std::chrono::duration<double, std::milli> between =
        is_observed ? seen.ended.at(step) - before->second : clock::duration{};
    step_ms.push_back((is_observed ? between.count() : ms) / c.job.device.time_scale);
  }
  if (step_ms.size() == c.job.train.steps && seen.summary.is_object()) return step_ms;
  return error{"rrfp-jitter-node reported " + std::to_string(step_ms.size()) + " of " +
                   std::to_string(c.job.train.steps) + " steps",
               error_kind::failed};
}

result<outcome> outcome_of(const cell& c, const progress_of_job& seen) {
  const auto step_ms = times_of(c, seen);
  if (!step_ms) return step_ms.failure();
  const auto scale = c.job.device.time_scale;
  std::vector<experiment::stage_time> stages;
  for (const auto& s : seen.summary.at("stages")) {
    const auto ms = [&](const char* key) { return s.at(key).get<double>() / scale; };
    experiment::stage_time stage{.busy_ms = ms("busy_ms"),
                                 .blocked_ms = ms("blocked_ms"),
                                 .ranks_ms = ms("ranks_ms"),
                                 .agreement = {},
                                 .memory = {},
                                 .launch_gap_ms = ms("launch_gap_ms")};
    s.at("peak_slots").get_to(stage.memory.slots_peak);
    s.at("peak_bytes").get_to(stage.memory.bytes_peak);
    stages.push_back(stage);
  }
  experiment::outcome_sum sum{c};
  sum.add(*step_ms, stages);
  return sum.finish();
}

}  // namespace

result<outcome> run_in_processes(const cell& c) {
  if (auto good = check_cell(c); !good) return good.failure();
  const scratch_folder folder;
  if (folder.path().empty())
    return error{"cannot create a folder for temporary files", error_kind::failed};
  node_job job{folder.path()};
  if (auto started = job.start(c.job, c.nodes); !started) return started.failure();
  progress_of_job seen;
  fault planned{c, job};
  auto heard = clock::now();
  const std::chrono::duration<double> limit{c.job.run.hang_timeout_s + c.fault.seconds +
                                            patience_s};
  for (bool over = false; !over;) {
    // Asked first: what a job wrote before its end is read once more.
    over = job.is_over();
    for (const auto& line : job.new_lines()) {
      record(line, seen);
      heard = clock::now();
    }
    planned.advance(seen.step_ms.empty() ? 0 : seen.step_ms.rbegin()->first);
    if (clock::now() - heard > limit)
      return error{"rrfp-jitter-node reported nothing for too long", error_kind::failed};
    if (!over) std::this_thread::sleep_for(poll_period);
  }
  if (auto ended = job.outcome(); !ended) return ended.failure();
  if (!planned.is_over()) return error{"the job ended before the fault", error_kind::failed};
  return outcome_of(c, seen);
}

}  // namespace rrfp::apps
