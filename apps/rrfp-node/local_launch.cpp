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

#include <rrfp/actors/membership.hpp>
#include <rrfp/plan/node_places.hpp>

#include "../common/console.hpp"
#include "refuse.hpp"

namespace rrfp::apps {

namespace {

using clock = std::chrono::steady_clock;

/// How long nodes may take to say that another one was lost. Those that still join cannot know it:
/// then it is said here.
constexpr std::chrono::milliseconds telling_time{1500};
/// How long nodes may take to end once one has failed, or node 0 has ended.
constexpr std::chrono::seconds ending_time{8};
/// How long the last of them may take if one has failed.
constexpr std::chrono::seconds last_one_time{1};
/// In place of these two: how long node 0 may take to write the trace of what was run.
constexpr std::chrono::seconds tracing_time{60};
/// How long they may take when node 0 has ended of an interrupt: those that have not joined yet
/// would wait for it.
constexpr std::chrono::milliseconds leaving_time{500};
constexpr std::chrono::milliseconds poll_period{20};

struct child {
  pid_t pid = -1;
  bool alive = false;
  bool was_killed = false;  ///< by the launcher: it did not end by itself
  int state = 0;

  bool has_code(int code) const { return !alive && WIFEXITED(state) && WEXITSTATUS(state) == code; }
  bool ended_well() const { return has_code(exit_done); }
  /// Ended badly, and neither of the launcher nor of an interrupt.
  bool failed() const {
    return !alive && !was_killed && !ended_well() && !has_code(exit_interrupted);
  }
  bool failed_with_code() const { return failed() && WIFEXITED(state); }
};

/// The smaller, the more a failure is a cause and the less a consequence of another one.
int depth_of(const child& n) {
  if (WIFSIGNALED(n.state)) return 0;
  return n.has_code(exit_node_lost) ? 2 : 1;
}

http_address metrics_of(http_address first, std::uint32_t node) {
  first.port = static_cast<std::uint16_t>(first.port + node);
  return first;
}

/// Before any node has started: a port that is taken would look like the loss of a node.
status check_metrics(const std::optional<http_address>& first, std::uint32_t nodes) {
  if (!first) return success();
  if (first->port + nodes - 1 > 65535)
    return error{fmt::format("--metrics {}: {} nodes take ports up to {}, expected at most 65535",
                             first->text(), nodes, first->port + nodes - 1)};
  for (std::uint32_t n = 0; n < nodes; ++n)
    if (auto free = check_free(metrics_of(*first, n)); !free) return free;
  return success();
}

std::vector<std::string> arguments_of(const command_options& options, std::uint32_t node,
                                      const std::optional<http_address>& metrics,
                                      const std::string& reports,
                                      const actors::listening_socket& rendezvous) {
  std::vector<std::string> all{"rrfp-node", "join", options.job};
  for (const auto& s : options.settings) all.insert(all.end(), {"--set", s});
  all.insert(all.end(),
             {"--nnodes", std::to_string(options.local_nodes), "--node-rank", std::to_string(node),
              "--rendezvous", fmt::format("127.0.0.1:{}", rendezvous.port), "--launched"});
  if (node == 0) {
    all.insert(all.end(), {"--rendezvous-fd", std::to_string(rendezvous.fd)});
    if (!options.json.empty()) all.insert(all.end(), {"--json", options.json});
  }
  if (!options.trace.empty()) all.insert(all.end(), {"--trace", options.trace});
  if (metrics) all.insert(all.end(), {"--metrics", metrics_of(*metrics, node).text()});
  if (!reports.empty()) all.insert(all.end(), {"--reports", reports});
  return all;
}

[[noreturn]] void become_node(const std::vector<std::string>& arguments, pid_t launcher) {
  // A node outlives the launcher in no case.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(exit_node_lost);
  // Ctrl-C reaches the launcher alone, which tells node 0.
  ::setpgid(0, 0);
  // A wish for a report must not end a node that does not listen yet.
  sigset_t waits;
  sigemptyset(&waits);
  sigaddset(&waits, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &waits, nullptr);
  std::vector<char*> argv;
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  std::fprintf(stderr, "rrfp-node: cannot start a node: %s\n", std::strerror(errno));
  ::_exit(exit_own_fault);
}

/// Takes note of the children that have ended. The one that failed first, or nothing; of those that
/// are found together, the likeliest cause.
std::optional<std::size_t> reap(std::vector<child>& nodes) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    auto& n = nodes[i];
    if (!n.alive || ::waitpid(n.pid, &n.state, WNOHANG) != n.pid) continue;
    n.alive = false;
    if (n.failed() && (!first || depth_of(n) < depth_of(nodes[*first]))) first = i;
  }
  return first;
}

/// Whether a node has said already what ended the job: node 0, or node 1 the loss of node 0.
bool is_told(const std::vector<child>& nodes) {
  return nodes[0].failed_with_code() ||
         ((nodes[0].failed() || nodes[0].was_killed) && nodes[1].failed_with_code());
}

void signal_all(const std::vector<child>& nodes, int number) {
  for (const auto& n : nodes)
    if (n.alive) ::kill(n.pid, number);
}

void kill_all(std::vector<child>& nodes) {
  for (auto& n : nodes) n.was_killed |= n.alive;
  signal_all(nodes, SIGKILL);
}

std::string how_it_ended(const child& n) {
  if (n.was_killed) return "did not end with the others and was killed";
  return WIFSIGNALED(n.state) ? fmt::format("was ended by signal {}", WTERMSIG(n.state))
                              : fmt::format("ended with exit code {}", WEXITSTATUS(n.state));
}

}  // namespace

int launch_nodes(const command_options& options, const job::job& j,
                 const std::optional<http_address>& metrics, const std::string& reports,
                 interrupt_watch& interrupts) {
  if (auto can = check_metrics(metrics, options.local_nodes); !can) return refuse(can.message());
  const auto rendezvous = actors::listen_on_loopback();
  if (!rendezvous) {
    print_error("rrfp-node: {}\n", rendezvous.message());
    return exit_own_fault;
  }
  std::fflush(nullptr);
  std::vector<child> nodes(options.local_nodes);
  const auto launcher = ::getpid();
  for (std::uint32_t n = 0; n < nodes.size(); ++n) {
    const auto arguments = arguments_of(options, n, metrics, reports, *rendezvous);
    nodes[n].pid = ::fork();
    if (nodes[n].pid == 0) become_node(arguments, launcher);
    if (nodes[n].pid < 0) {
      print_error("rrfp-node: cannot start node {}: {}\n", n, std::strerror(errno));
      signal_all(nodes, SIGKILL);
      return exit_own_fault;
    }
    nodes[n].alive = true;
  }
  ::close(rendezvous->fd);

  const auto count_alive = [&] {
    return std::count_if(nodes.begin(), nodes.end(), [](const child& n) { return n.alive; });
  };
  // Where there are checkpoints, a first interrupt lets the step end and saves it.
  const bool patient = !j.checkpoint.dir.empty();
  // Any node has all of them report.
  std::atomic<int> reports_wanted = 0;
  interrupts.on_report([&] { ++reports_wanted; });
  const auto name = [&](std::size_t n) {
    const auto places = plan::node_places::make(job::variants(j)[0], options.local_nodes);
    print_error("rrfp-node: node {} ({}) {}\n", n,
                places ? places->describe(node_id{static_cast<std::uint32_t>(n)}) : "",
                how_it_ended(nodes[n]));
  };
  int told = 0;
  bool told_others = false;
  bool one_left = false;
  bool named = false;
  std::optional<std::size_t> first;  ///< that failed
  auto naming = clock::time_point::max();
  std::optional<clock::time_point> deadline;
  while (count_alive() > 0) {
    std::this_thread::sleep_for(poll_period);
    if (const auto failed = reap(nodes); failed && !first) {
      first = failed;
      // A node that ends because another one was lost reports that loss itself.
      if (depth_of(nodes[*first]) < 2) naming = clock::now() + telling_time;
    }
    if (reports_wanted.exchange(0) > 0 && nodes[0].alive) ::kill(nodes[0].pid, SIGUSR1);
    // One by one: signals that wait are merged into one.
    if (interrupts.count() > told && told < 2) {
      if (nodes[0].alive) ::kill(nodes[0].pid, SIGINT);
      if (++told == 2 || !patient) deadline = clock::now() + ending_time;
    }
    if (told > 0 && !nodes[0].alive && !std::exchange(told_others, true)) {
      signal_all(nodes, SIGINT);
      deadline = clock::now() + leaving_time;
    }
    if (told == 0 && clock::now() > naming) {
      naming = clock::time_point::max();
      named = !is_told(nodes);
      if (named) name(*first);
      signal_all(nodes, SIGTERM);
    }
    const bool traces = nodes[0].alive && !options.trace.empty();
    if ((first || !nodes[0].alive) && !deadline)
      deadline = clock::now() + (traces ? tracing_time : ending_time);
    if (first && count_alive() == 1 && !traces && !std::exchange(one_left, true))
      deadline = std::min(*deadline, clock::now() + last_one_time);
    if (deadline && clock::now() > *deadline) kill_all(nodes);
  }
  interrupts.on_report(nullptr);

  if (interrupts.interrupted()) return exit_interrupted;
  const auto killed =
      std::find_if(nodes.begin(), nodes.end(), [](const child& n) { return n.was_killed; });
  if (!first && killed == nodes.end())
    return nodes[0].has_code(exit_interrupted) ? exit_interrupted : exit_done;
  if (!named && !is_told(nodes))
    name(first && (depth_of(nodes[*first]) < 2 || killed == nodes.end())
             ? *first
             : static_cast<std::size_t>(killed - nodes.begin()));
  if (nodes[0].failed_with_code()) return WEXITSTATUS(nodes[0].state);
  if (first && nodes[*first].failed_with_code()) return WEXITSTATUS(nodes[*first].state);
  return exit_node_lost;
}

}  // namespace rrfp::apps
