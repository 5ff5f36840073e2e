/// For several values of transport.node_timeout_ms: how often a busy machine is taken for a lost
/// one, and how soon the loss of a node is detected.
///
///   build/release/bin/loss_bench [SECONDS STALLS REPEATS]
///
/// Default: 30 3 1, about four minutes. Jobs of three nodes each, one job per limit, run at the
/// same time; their nodes only watch each other, as in any job. Eight further processes spin all
/// the time.
///
///   busy    false alarms within SECONDS: no node is lost
///   stall   false alarms while a node of each job in turn stops for 5 s (SIGSTOP), STALLS times
///   kill    a node is killed: time until the last of the others notices, the maximum of REPEATS
///   stop    a node stops for good: the same time
///   cut     the link of a node forwards nothing any more: the same time
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <rrfp/membership/membership.hpp>

#include <poll.h>
#include <unistd.h>

namespace {

using namespace rrfp;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

constexpr std::uint32_t nodes = 3;
constexpr int busy_processes = 8;
constexpr std::array limits{600ms, 1500ms, 3000ms, 5000ms, 10'000ms, 20'000ms};

/// The message of a node to the benchmark, over a pipe.
struct node_event {
  std::uint32_t node = 0;
  bool lost = false;  ///< a node is lost; false: this node has joined
  std::int64_t at_ns = 0;
};

std::int64_t now_ns() { return clock_type::now().time_since_epoch().count(); }

template <class Work>
pid_t spawn(Work work) {
  std::fflush(nullptr);
  const auto bench = ::getpid();
  const auto pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != bench) ::_exit(1);
  work();
  ::_exit(0);
}

void run_node(std::uint32_t number, std::chrono::milliseconds limit, std::uint16_t port,
              int listen_fd, int key_fd, int events) {
  actors::membership_options options;
  options.node = node_id{number};
  options.nodes = nodes;
  options.rendezvous_port = port;
  options.listen_fd = number == 0 ? listen_fd : -1;
  options.key_fd = key_fd;
  if (number != 0) ::close(listen_fd);
  options.job_id = "bench";
  options.node_timeout = limit;
  const auto report = [&](bool lost) {
    const node_event e{number, lost, now_ns()};
    if (::write(events, &e, sizeof e) != sizeof e) ::_exit(1);
  };
  auto joined = actors::membership::join(options);
  if (!joined) {
    std::fprintf(stderr, "loss_bench: %s\n", joined.message().c_str());
    ::_exit(1);
  }
  report(false);
  if ((*joined)->loss(24h)) report(true);
  // If it ended, the others would notice its closed connection instead of the loss.
  for (;;) ::pause();
}

/// Forwards bytes in both directions until one end closes.
void relay(int node, int node_0) {
  for (;;) {
    std::array<pollfd, 2> ends{{{node, POLLIN, 0}, {node_0, POLLIN, 0}}};
    ::poll(ends.data(), ends.size(), -1);
    for (const auto& end : ends) {
      if (end.revents == 0) continue;
      std::array<char, 4096> bytes;
      const auto got = ::recv(end.fd, bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      (void)::send(end.fd == node ? node_0 : node, bytes.data(), static_cast<std::size_t>(got),
                   MSG_NOSIGNAL);
    }
  }
}

/// The link between a node and node 0; SIGSTOP cuts it. A node that joins on a busy machine may
/// have to connect more than once.
void run_link(const actors::listening_socket& from, std::uint16_t to) {
  for (;;) {
    const int node = ::accept(from.fd, nullptr, nullptr);
    const int node_0 = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(to);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(node_0, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0)
      relay(node, node_0);
    ::close(node_0);
    ::close(node);
  }
}

/// Three nodes with one limit. Node 2 reaches node 0 over a link.
class job {
 public:
  explicit job(std::chrono::milliseconds limit) : limit_(limit) {
    if (::pipe(events_.data()) != 0) std::exit(1);
    const auto rendezvous = *actors::listen_on_loopback();
    const auto link = *actors::listen_on_loopback();
    const auto key_fd = *actors::key_descriptor();
    link_ = spawn([&] {
      ::close(rendezvous.fd);
      run_link(link, rendezvous.port);
    });
    for (std::uint32_t n = 0; n < nodes; ++n)
      pids_[n] = spawn([&] {
        ::close(link.fd);
        run_node(n, limit_, n == 2 ? link.port : rendezvous.port, rendezvous.fd, key_fd,
                 events_[1]);
      });
    ::close(rendezvous.fd);
    ::close(link.fd);
    ::close(key_fd);
  }
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job() {
    for (const auto pid : {pids_[0], pids_[1], pids_[2], link_}) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::close(events_[0]);
    ::close(events_[1]);
  }

  std::chrono::milliseconds limit() const { return limit_; }
  pid_t node(std::uint32_t number) const { return pids_[number]; }
  pid_t link() const { return link_; }
  /// Waits until all nodes have joined. False: one was lost before, or took more than a minute.
  bool joined() const {
    for (std::uint32_t count = 0; count < nodes; ++count)
      if (const auto e = next(60s); !e || e->lost) return false;
    return true;
  }
  /// The next event of a node; nothing if none comes in time.
  std::optional<node_event> next(std::chrono::milliseconds within) const {
    pollfd readable{events_[0], POLLIN, 0};
    if (::poll(&readable, 1, static_cast<int>(within.count())) <= 0) return std::nullopt;
    node_event e;
    if (::read(events_[0], &e, sizeof e) != sizeof e) return std::nullopt;
    return e;
  }

 private:
  const std::chrono::milliseconds limit_;
  std::array<int, 2> events_{};
  std::array<pid_t, nodes> pids_{};
  pid_t link_ = -1;
};

using jobs = std::vector<std::unique_ptr<job>>;

/// With a short limit a node may be lost while the others still join: then the job starts again.
void await(std::unique_ptr<job>& one) {
  constexpr int attempts_max = 10;
  for (int attempt = 1; !one->joined(); ++attempt) {
    const auto limit = one->limit();
    if (attempt == attempts_max) {
      std::fprintf(stderr, "loss_bench: the nodes with a limit of %lld ms did not join\n",
                   static_cast<long long>(limit.count()));
      std::exit(1);
    }
    one = nullptr;
    one = std::make_unique<job>(limit);
  }
}

jobs start_all() {
  jobs all;
  for (const auto limit : limits) all.push_back(std::make_unique<job>(limit));
  for (auto& one : all) await(one);
  return all;
}

/// Counts the jobs that report a lost node, and restarts them.
void count_alarms(jobs& all, std::vector<int>& alarms) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->next(0ms)) continue;
    ++alarms[i];
    all[i] = nullptr;
    all[i] = std::make_unique<job>(limits[i]);
    await(all[i]);
  }
}

std::vector<int> busy(int seconds) {
  auto all = start_all();
  std::vector<int> alarms(all.size());
  const auto until = clock_type::now() + std::chrono::seconds{seconds};
  while (clock_type::now() < until) {
    std::this_thread::sleep_for(100ms);
    count_alarms(all, alarms);
  }
  return alarms;
}

std::vector<int> stalls(int count) {
  auto all = start_all();
  std::vector<int> alarms(all.size());
  for (int n = 0; n < count; ++n) {
    const auto stopped = static_cast<std::uint32_t>(n) % nodes;
    for (const auto& one : all) ::kill(one->node(stopped), SIGSTOP);
    std::this_thread::sleep_for(5s);
    for (const auto& one : all) ::kill(one->node(stopped), SIGCONT);
    std::this_thread::sleep_for(2s);
    count_alarms(all, alarms);
  }
  return alarms;
}

enum class loss { kill, stop, cut };

/// For each limit the longest time in seconds until the last of the other nodes reports the loss.
std::vector<double> detect(loss how, int repeats) {
  std::vector<double> longest(limits.size());
  for (int n = 0; n < repeats; ++n) {
    auto all = start_all();
    std::this_thread::sleep_for(500ms);
    const auto begun = now_ns();
    for (const auto& one : all)
      ::kill(how == loss::cut ? one->link() : one->node(2), how == loss::kill ? SIGKILL : SIGSTOP);
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::uint32_t reports = 0; reports < nodes - 1;) {
        const auto e = all[i]->next(limits.back() + 10s);
        if (!e) return {};
        if (e->node == 2 || !e->lost) continue;
        ++reports;
        longest[i] = std::max(longest[i], static_cast<double>(e->at_ns - begun) / 1e9);
      }
  }
  return longest;
}

int argument(int argc, char** argv, int index, int fallback) {
  return argc > index ? std::atoi(argv[index]) : fallback;
}

}  // namespace

int main(int argc, char** argv) {
  const int seconds = argument(argc, argv, 1, 30);
  const int stall_count = argument(argc, argv, 2, 3);
  const int repeats = argument(argc, argv, 3, 1);
  std::vector<pid_t> spinning;
  for (int i = 0; i < busy_processes; ++i)
    spinning.push_back(spawn([] {
      for (volatile std::uint64_t n = 0;;) n = n + 1;
    }));
  const auto begin = [begun = now_ns()](const char* phase) {
    std::fprintf(stderr, "%6.1f s  %s\n", static_cast<double>(now_ns() - begun) / 1e9, phase);
  };
  begin("busy");
  const auto busy_alarms = busy(seconds);
  begin("stall");
  const auto stall_alarms = stalls(stall_count);
  std::array<std::vector<double>, 3> times;
  for (const auto& [how, name] :
       {std::pair{loss::kill, "kill"}, {loss::stop, "stop"}, {loss::cut, "cut"}}) {
    begin(name);
    times[static_cast<std::size_t>(how)] = detect(how, repeats);
  }
  for (const auto pid : spinning) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  fmt::print("{} cores, {} busy processes\n", std::thread::hardware_concurrency(), busy_processes);
  fmt::print("| limit | false alarms in {} s | in {} stalls of 5 s | kill | stop | cut |\n",
             seconds, stall_count);
  fmt::print("|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < limits.size(); ++i) {
    fmt::print("| {:g} s | {} | {} |", static_cast<double>(limits[i].count()) / 1e3, busy_alarms[i],
               stall_alarms[i]);
    for (const auto& longest : times)
      fmt::print(" {} |", longest.empty() ? "never" : fmt::format("{:.2f} s", longest[i]));
    fmt::print("\n");
  }
  return 0;
}
