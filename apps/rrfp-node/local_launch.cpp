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

#include "refuse.hpp"

namespace rrfp::apps {

namespace {

using clock = std::chrono::steady_clock;

/// How long nodes may take to notice that another one has ended, to say so and to end too.
constexpr std::chrono::seconds ending_time{8};
/// How long the last of them may take once all others have ended.
constexpr std::chrono::seconds last_one_time{1};
/// How long they may take when node 0 has ended of an interrupt: those that have not joined yet
/// would wait for it.
constexpr std::chrono::milliseconds leaving_time{500};
constexpr std::chrono::milliseconds poll_period{20};

struct child {
  pid_t pid = -1;
  bool alive = false;
  bool was_killed = false;  ///< by the launcher: it did not end by itself
  int state = 0;

  bool has_code(int code) const { return WIFEXITED(state) && WEXITSTATUS(state) == code; }
  bool ended_well() const { return has_code(exit_done); }
};

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

/// Takes note of the children that have ended.
void reap(std::vector<child>& nodes) {
  for (auto& n : nodes)
    if (n.alive && ::waitpid(n.pid, &n.state, WNOHANG) == n.pid) n.alive = false;
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
    fmt::print(stderr, "rrfp-node: {}\n", rendezvous.message());
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
      fmt::print(stderr, "rrfp-node: cannot start node {}: {}\n", n, std::strerror(errno));
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
  int told = 0;
  bool told_others = false;
  bool one_left = false;
  std::optional<clock::time_point> deadline;
  while (count_alive() > 0) {
    std::this_thread::sleep_for(poll_period);
    reap(nodes);
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
    const auto alive = count_alive();
    if (alive < std::ssize(nodes) && !deadline) deadline = clock::now() + ending_time;
    if (alive == 1 && nodes.size() > 1 && !std::exchange(one_left, true))
      deadline = std::min(*deadline, clock::now() + last_one_time);
    if (deadline && clock::now() > *deadline) kill_all(nodes);
  }
  interrupts.on_report(nullptr);

  if (interrupts.interrupted()) return exit_interrupted;
  if (const auto state = nodes[0].state; WIFEXITED(state) && !nodes[0].ended_well())
    return WEXITSTATUS(state);
  for (std::uint32_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].ended_well()) continue;
    // Of the loss of node 0, node 1 tells more than can be seen from here.
    if (n == 0 && nodes[1].has_code(exit_node_lost)) return exit_node_lost;
    const auto places = plan::node_places::make(job::variants(j)[0], options.local_nodes);
    fmt::print(stderr, "rrfp-node: node {} ({}) {}\n", n,
               places ? places->describe(node_id{n}) : "", how_it_ended(nodes[n]));
    return exit_node_lost;
  }
  return exit_done;
}

}  // namespace rrfp::apps
