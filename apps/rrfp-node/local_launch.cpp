#include "local_launch.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <rrfp/job/node_places.hpp>
#include <rrfp/membership/membership.hpp>

#include "../common/console.hpp"
#include "../common/program.hpp"

namespace rrfp::apps {

namespace {

using clock = std::chrono::steady_clock;

/// How long nodes may take to report the loss of another node. Nodes that have not joined cannot
/// notice it; then the launcher reports it.
constexpr std::chrono::milliseconds report_limit{1500};
/// How long nodes may take to end after one has failed, or node 0 has ended early.
constexpr std::chrono::seconds end_limit{8};
/// How long the last remaining node may take to end after a failure, and all once the job is over.
constexpr std::chrono::seconds last_node_limit{1};
/// Replaces these two limits while node 0 writes a trace.
constexpr std::chrono::seconds trace_limit{60};
/// When the others still run so long after a node was interrupted, it was meant alone, while it
/// waited for another one; else the whole job.
constexpr std::chrono::seconds alone_after{10};
/// How long nodes may take after an interrupt ended node 0: nodes that have not joined would wait
/// for it.
constexpr std::chrono::milliseconds interrupt_limit{500};
constexpr std::chrono::milliseconds poll_period{20};

struct child {
  pid_t pid = -1;
  bool alive = false;
  bool was_killed = false;  ///< by the launcher
  int state = 0;
  clock::time_point ended;

  bool has_code(int code) const { return !alive && WIFEXITED(state) && WEXITSTATUS(state) == code; }
  bool ended_well() const { return has_code(exit_done); }
  /// Failed by itself: neither the launcher nor an interrupt ended it.
  bool failed() const {
    return !alive && !was_killed && !ended_well() && !has_code(exit_interrupted);
  }
  bool failed_with_code() const { return failed() && WIFEXITED(state); }
  bool was_interrupted_alone() const {
    return has_code(exit_interrupted) && clock::now() > ended + alone_after;
  }
};

/// Orders failures from cause to consequence: 0 is the likeliest cause, 2 the loss of another node.
int order_of(const child& n) {
  if (WIFSIGNALED(n.state)) return 0;
  return n.has_code(exit_node_lost) ? 2 : 1;
}

http_address metrics_of(http_address first, std::uint32_t node) {
  first.port = static_cast<std::uint16_t>(first.port + node);
  return first;
}

/// Checked before any node starts: otherwise a port in use would look like the loss of a node.
status check_metrics(const std::optional<http_address>& first, std::uint32_t nodes) {
  if (!first) return success();
  if (first->port + nodes - 1 > 65535)
    return error{fmt::format("--metrics {}: {} nodes use ports up to {}, expected at most 65535",
                             first->text(), nodes, first->port + nodes - 1)};
  for (std::uint32_t n = 0; n < nodes; ++n)
    if (auto free = check_free(metrics_of(*first, n)); !free) return free;
  return success();
}

std::vector<std::string> arguments_of(const command_options& options, std::uint32_t node,
                                      const std::optional<http_address>& metrics,
                                      const actors::listening_socket& rendezvous, int key_fd) {
  std::vector<std::string> all{program_name(), "join", options.job};
  for (const auto& s : options.settings) all.insert(all.end(), {"--set", s});
  all.insert(all.end(),
             {"--nnodes", std::to_string(options.local_nodes), "--node-rank", std::to_string(node),
              "--rendezvous", fmt::format("127.0.0.1:{}", rendezvous.port), "--key-fd",
              std::to_string(key_fd), "--launched"});
  if (node == 0) all.insert(all.end(), {"--rendezvous-fd", std::to_string(rendezvous.fd)});
  // Whichever node leads writes it.
  if (!options.json.empty()) all.insert(all.end(), {"--json", options.json});
  if (!options.trace.empty()) all.insert(all.end(), {"--trace", options.trace});
  if (metrics) all.insert(all.end(), {"--metrics", metrics_of(*metrics, node).text()});
  if (!options.reports.empty()) all.insert(all.end(), {"--reports", options.reports});
  return all;
}

[[noreturn]] void become_node(const std::vector<std::string>& arguments, pid_t launcher) {
  // The node must not outlive the launcher.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(exit_node_lost);
  // Ctrl-C reaches only the launcher, which forwards it to node 0.
  ::setpgid(0, 0);
  // SIGUSR1 must not end a node before its interrupt_watch takes the signal.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  std::vector<char*> argv;
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  std::fprintf(stderr, "%s: cannot start a node: %s\n", program_name(), std::strerror(errno));
  ::_exit(exit_failed);
}

/// Collects the children that have ended. Returns the one that failed, if any; of several, the
/// likeliest cause. `restarts`: also one that was interrupted alone.
std::optional<std::size_t> reap(std::vector<child>& nodes, bool restarts) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    auto& n = nodes[i];
    const bool ends = n.alive && ::waitpid(n.pid, &n.state, WNOHANG) == n.pid;
    if (ends) {
      n.alive = false;
      n.ended = clock::now();
    }
    const bool is_gone = (ends && n.failed()) || (restarts && n.was_interrupted_alone());
    if (is_gone && (!first || order_of(n) < order_of(nodes[*first]))) first = i;
  }
  return first;
}

/// Whether the nodes that have ended were killed or interrupted, or have left, and all others run:
/// they wait for replacements.
bool may_restart(const std::vector<child>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(), [](const child& n) {
    return n.alive || n.has_code(exit_drained) || n.has_code(exit_interrupted) ||
           (n.failed() && WIFSIGNALED(n.state));
  });
}

/// `failed`, or another node that has failed if `failed` was started again.
std::optional<std::size_t> first_not_alive(const std::vector<child>& nodes, std::size_t failed) {
  if (!nodes[failed].alive) return failed;
  const auto other =
      std::find_if(nodes.begin(), nodes.end(), [](const auto& n) { return n.failed(); });
  if (other == nodes.end()) return std::nullopt;
  return static_cast<std::size_t>(other - nodes.begin());
}

/// Whether a node has already reported why the job ended: node 0, or node 1 the loss of node 0.
bool has_report(const std::vector<child>& nodes) {
  return nodes[0].failed_with_code() ||
         ((nodes[0].failed() || nodes[0].was_killed) && nodes[1].failed_with_code());
}

/// Node 0 last: a node that it leaves then knows that the launcher ends the job.
void signal_all(const std::vector<child>& nodes, int number) {
  for (auto n = nodes.rbegin(); n != nodes.rend(); ++n)
    if (n->alive) ::kill(n->pid, number);
}

void kill_all(std::vector<child>& nodes) {
  for (auto& n : nodes) n.was_killed |= n.alive;
  signal_all(nodes, SIGKILL);
}

std::string how_it_ended(const child& n) {
  if (n.was_killed) return "did not end in time and was killed";
  if (n.has_code(exit_drained)) return "has left the job";
  return WIFSIGNALED(n.state) ? fmt::format("was killed by signal {}", WTERMSIG(n.state))
                              : fmt::format("ended with exit code {}", WEXITSTATUS(n.state));
}

/// The nodes of a job on this machine, from their start to the exit code of the launcher.
class local_launch {
 public:
  local_launch(const command_options& options, const job::job& j,
               const std::optional<http_address>& metrics, interrupt_watch& interrupts,
               const actors::listening_socket& rendezvous, int key_fd)
      : options_(options),
        job_(j),
        metrics_(metrics),
        interrupts_(interrupts),
        rendezvous_(rendezvous),
        key_fd_(key_fd),
        nodes_(options.local_nodes),
        restarts_left_(j.recovery.max_restarts) {}

  int run() {
    if (!start_all()) return exit_failed;
    // A signal to one node makes all nodes write hang reports.
    interrupts_.on_report([this] { ++reports_wanted_; });
    while (count_alive() > 0) {
      std::this_thread::sleep_for(poll_period);
      const auto failed = reap(nodes_, may_restart_interrupted());
      if (is_over()) end_within(last_node_limit);
      if (failed) on_failure(*failed);
      forward_signals();
      report_in_time();
      end_in_time();
    }
    interrupts_.on_report(nullptr);
    return exit_code();
  }

 private:
  bool start_all() {
    for (std::uint32_t n = 0; n < nodes_.size(); ++n)
      if (!start(n)) {
        signal_all(nodes_, SIGKILL);
        return false;
      }
    if (restarts_left_ > 0) return true;
    ::close(rendezvous_.fd);
    ::close(key_fd_);
    return true;
  }

  bool start(std::uint32_t n) {
    std::fflush(nullptr);
    const auto arguments = arguments_of(options_, n, metrics_, rendezvous_, key_fd_);
    nodes_[n] = {};
    nodes_[n].pid = ::fork();
    if (nodes_[n].pid == 0) become_node(arguments, launcher_);
    nodes_[n].alive = nodes_[n].pid > 0;
    if (!nodes_[n].alive) complain("cannot start node {}: {}", n, std::strerror(errno));
    return nodes_[n].alive;
  }

  std::ptrdiff_t count_alive() const {
    return std::count_if(nodes_.begin(), nodes_.end(), [](const child& n) { return n.alive; });
  }
  /// A node ends with 0 after node 0 has written the outputs: the job needs no other node.
  bool is_over() const {
    return job_.recovery.max_restarts > 0 &&
           std::any_of(nodes_.begin(), nodes_.end(), [](const child& n) { return n.ended_well(); });
  }

  bool may_restart_interrupted() const { return restarts_left_ > 0 && interrupts_.count() == 0; }
  /// A node that was interrupted, perhaps alone.
  bool may_return(const child& n) const {
    return may_restart_interrupted() && n.has_code(exit_interrupted);
  }

  void on_failure(std::size_t failed) {
    if (may_restart(nodes_) && !first_ && !deadline_ && forwarded_ == 0) start_again();
    if (first_ || is_over()) return;
    first_ = first_not_alive(nodes_, failed);
    // A node that ends because another one was lost reports that loss itself.
    if (first_ && order_of(nodes_[*first_]) < 2) report_deadline_ = clock::now() + report_limit;
  }

  void start_again() {
    for (std::uint32_t n = 0; n < nodes_.size() && restarts_left_ > 0; ++n) {
      if (nodes_[n].alive) continue;
      complain("node {} {}; restarting it", n, how_it_ended(nodes_[n]));
      if (start(n)) --restarts_left_;
    }
  }

  void forward_signals() {
    const auto& leader = nodes_[0];
    if (reports_wanted_.exchange(0) > 0 && leader.alive) ::kill(leader.pid, SIGUSR1);
    // One per round: the kernel merges pending signals.
    if (interrupts_.count() > forwarded_ && forwarded_ < 2) {
      if (leader.alive) ::kill(leader.pid, SIGINT);
      // With checkpoints, the first interrupt lets the step finish and saves it.
      const bool saves = !job_.checkpoint.dir.empty();
      if (++forwarded_ == 2 || !saves) deadline_ = clock::now() + end_limit;
    }
    if (forwarded_ > 0 && !leader.alive && !std::exchange(others_interrupted_, true)) {
      signal_all(nodes_, SIGINT);
      deadline_ = clock::now() + interrupt_limit;
    }
  }

  void report_in_time() {
    if (forwarded_ > 0 || clock::now() <= report_deadline_) return;
    report_deadline_ = clock::time_point::max();
    reported_ = !has_report(nodes_);
    if (reported_) report_failure(*first_);
    signal_all(nodes_, SIGTERM);
  }

  void report_failure(std::size_t n) const {
    const auto places = job::node_places::make(job::variants(job_)[0], options_.local_nodes);
    complain("node {} ({}) {}", n,
             places ? places->describe(node_id{static_cast<std::uint32_t>(n)}) : "",
             how_it_ended(nodes_[n]));
  }

  void end_within(clock::duration limit) {
    if (!deadline_) deadline_ = clock::now() + limit;
  }

  void end_in_time() {
    const bool writes_trace = nodes_[0].alive && !options_.trace.empty();
    if (first_ || (!nodes_[0].alive && !may_return(nodes_[0])))
      end_within(writes_trace ? trace_limit : end_limit);
    if (first_ && count_alive() == 1 && !writes_trace && !std::exchange(one_left_, true))
      deadline_ = std::min(*deadline_, clock::now() + last_node_limit);
    if (deadline_ && clock::now() > *deadline_) kill_all(nodes_);
  }

  int exit_code() const {
    if (interrupts_.interrupted()) return exit_interrupted;
    // Whoever led at the end may have failed to write an output.
    if (is_over())
      return std::ranges::any_of(nodes_, [](const child& n) { return n.has_code(exit_failed); })
                 ? exit_failed
                 : exit_done;
    const auto killed =
        std::find_if(nodes_.begin(), nodes_.end(), [](const child& n) { return n.was_killed; });
    if (!first_ && killed == nodes_.end())
      return nodes_[0].has_code(exit_interrupted) ? exit_interrupted : exit_done;
    if (!reported_ && !has_report(nodes_))
      report_failure(first_ && (order_of(nodes_[*first_]) < 2 || killed == nodes_.end())
                         ? *first_
                         : static_cast<std::size_t>(killed - nodes_.begin()));
    if (nodes_[0].failed_with_code()) return WEXITSTATUS(nodes_[0].state);
    if (first_ && nodes_[*first_].failed_with_code()) return WEXITSTATUS(nodes_[*first_].state);
    return exit_node_lost;
  }

  const command_options& options_;
  const job::job& job_;
  const std::optional<http_address>& metrics_;
  interrupt_watch& interrupts_;
  const actors::listening_socket rendezvous_;
  const int key_fd_;
  const pid_t launcher_ = ::getpid();
  std::vector<child> nodes_;
  std::uint32_t restarts_left_;
  std::atomic<int> reports_wanted_ = 0;
  int forwarded_ = 0;  ///< interrupts sent to node 0
  bool others_interrupted_ = false;
  bool one_left_ = false;
  bool reported_ = false;
  std::optional<std::size_t> first_;  ///< the node that failed first, and was not started again
  clock::time_point report_deadline_ = clock::time_point::max();
  std::optional<clock::time_point> deadline_;
};

}  // namespace

int launch_nodes(const command_options& options, const job::job& j,
                 const std::optional<http_address>& metrics, interrupt_watch& interrupts) {
  if (auto can = check_metrics(metrics, options.local_nodes); !can) return end_with(can.failure());
  const auto rendezvous = actors::listen_on_loopback();
  // A descriptor: all users can read a command line, and an environment passes to every child
  // process and into crash reports.
  const auto key_fd = actors::key_descriptor();
  if (!rendezvous || !key_fd) {
    complain("{}", rendezvous ? key_fd.message() : rendezvous.message());
    return exit_failed;
  }
  return local_launch{options, j, metrics, interrupts, *rendezvous, *key_fd}.run();
}

}  // namespace rrfp::apps
