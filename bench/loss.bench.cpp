/// transport.node_timeout_ms: how often a busy machine is taken for a lost one, and how soon a node
/// that is really lost is told of, by that limit.
///
///   build/release/bin/loss_bench [SECONDS STALLS REPEATS]      (default: 60 6 3; some four
///   minutes)
///
/// Jobs of three nodes each, one job a limit, run beside each other; their nodes only watch each
/// other, as in any job. Eight further processes spin all the time.
///
///   busy    for SECONDS; every node that is told to be lost was not
///   stall   a node of each job in turn stands still for 5 s (SIGSTOP), STALLS times; the same
///   kill    a node is killed; from then until the last of the others knows, the longest of REPEATS
///   stop    a node stands still for good; the same
///   cut     the link of a node passes nothing on any more; the same
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
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <rrfp/actors/membership.hpp>

#include <poll.h>
#include <unistd.h>

namespace {

using namespace rrfp;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

constexpr std::uint32_t nodes = 3;
constexpr int busy_processes = 8;
constexpr std::array limits{600ms, 1500ms, 3000ms, 5000ms, 10'000ms, 20'000ms};

/// What a node tells the bench, over a pipe.
struct word {
  std::uint32_t by = 0;
  bool lost = false;  ///< or joined
  std::int64_t at_ns = 0;
};

std::int64_t now_ns() { return clock_type::now().time_since_epoch().count(); }

template <class Life>
pid_t spawn(Life life) {
  std::fflush(nullptr);
  const auto bench = ::getpid();
  const auto pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != bench) ::_exit(1);
  life();
  ::_exit(0);
}

void be_node(std::uint32_t rank, std::chrono::milliseconds limit, std::uint16_t port, int listen_fd,
             int words) {
  actors::membership_options options;
  options.node = node_id{rank};
  options.nodes = nodes;
  options.rendezvous_port = port;
  options.listen_fd = rank == 0 ? listen_fd : -1;
  if (rank != 0) ::close(listen_fd);
  options.job_id = "bench";
  options.node_timeout = limit;
  const auto say = [&](bool lost) {
    const word w{rank, lost, now_ns()};
    if (::write(words, &w, sizeof w) != sizeof w) ::_exit(1);
  };
  auto joined = actors::membership::join(options, {});
  if (!joined) {
    std::fprintf(stderr, "loss_bench: %s\n", joined.message().c_str());
    ::_exit(1);
  }
  say(false);
  if (!(*joined)->loss(24h).empty()) say(true);
  // Its end would tell the others before they have noticed by themselves.
  for (;;) ::pause();
}

/// Passes on what comes until one end closes.
void relay(int node, int rank_0) {
  for (;;) {
    std::array<pollfd, 2> ends{{{node, POLLIN, 0}, {rank_0, POLLIN, 0}}};
    ::poll(ends.data(), ends.size(), -1);
    for (const auto& end : ends) {
      if (end.revents == 0) continue;
      std::array<char, 4096> bytes;
      const auto got = ::recv(end.fd, bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      (void)::send(end.fd == node ? rank_0 : node, bytes.data(), static_cast<std::size_t>(got),
                   MSG_NOSIGNAL);
    }
  }
}

/// Between a node and rank 0; stands still when the link is cut. A node that joins on a busy
/// machine may have to connect more than once.
void be_link(const actors::listening_socket& from, std::uint16_t to) {
  for (;;) {
    const int node = ::accept(from.fd, nullptr, nullptr);
    const int rank_0 = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(to);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(rank_0, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0)
      relay(node, rank_0);
    ::close(rank_0);
    ::close(node);
  }
}

/// Three nodes with one limit. Node 2 reaches rank 0 over a link.
class job {
 public:
  explicit job(std::chrono::milliseconds limit) : limit_(limit) {
    if (::pipe(words_.data()) != 0) std::exit(1);
    const auto rendezvous = *actors::listen_on_loopback();
    const auto link = *actors::listen_on_loopback();
    link_ = spawn([&] {
      ::close(rendezvous.fd);
      be_link(link, rendezvous.port);
    });
    for (std::uint32_t rank = 0; rank < nodes; ++rank)
      pids_[rank] = spawn([&] {
        ::close(link.fd);
        be_node(rank, limit_, rank == 2 ? link.port : rendezvous.port, rendezvous.fd, words_[1]);
      });
    ::close(rendezvous.fd);
    ::close(link.fd);
  }
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job() {
    for (const auto pid : {pids_[0], pids_[1], pids_[2], link_}) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::close(words_[0]);
    ::close(words_[1]);
  }

  std::chrono::milliseconds limit() const { return limit_; }
  pid_t node(std::uint32_t rank) const { return pids_[rank]; }
  pid_t link() const { return link_; }
  /// Waits until all nodes have joined. False: one was lost before, or took more than a minute.
  bool joined() const {
    for (std::uint32_t count = 0; count < nodes; ++count)
      if (const auto w = next(60s); !w || w->lost) return false;
    return true;
  }
  /// The next word within the time.
  std::optional<word> next(std::chrono::milliseconds within) const {
    pollfd here{words_[0], POLLIN, 0};
    if (::poll(&here, 1, static_cast<int>(within.count())) <= 0) return std::nullopt;
    word w;
    if (::read(words_[0], &w, sizeof w) != sizeof w) return std::nullopt;
    return w;
  }

 private:
  const std::chrono::milliseconds limit_;
  std::array<int, 2> words_{};
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

/// Counts the jobs that have lost a node, and starts those again.
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
    const auto rank = static_cast<std::uint32_t>(n) % nodes;
    for (const auto& one : all) ::kill(one->node(rank), SIGSTOP);
    std::this_thread::sleep_for(5s);
    for (const auto& one : all) ::kill(one->node(rank), SIGCONT);
    std::this_thread::sleep_for(2s);
    count_alarms(all, alarms);
  }
  return alarms;
}

enum class loss { kill, stop, cut };

/// For each limit the longest time in seconds until the last of those that remain has told it.
std::vector<double> detect(loss how, int repeats) {
  std::vector<double> longest(limits.size());
  for (int n = 0; n < repeats; ++n) {
    auto all = start_all();
    std::this_thread::sleep_for(500ms);
    const auto begun = now_ns();
    for (const auto& one : all)
      ::kill(how == loss::cut ? one->link() : one->node(2), how == loss::kill ? SIGKILL : SIGSTOP);
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::uint32_t told = 0; told < nodes - 1;) {
        const auto w = all[i]->next(limits.back() + 10s);
        if (!w) return {};
        if (w->by == 2 || !w->lost) continue;
        ++told;
        longest[i] = std::max(longest[i], static_cast<double>(w->at_ns - begun) / 1e9);
      }
  }
  return longest;
}

int number(int argc, char** argv, int at, int otherwise) {
  return argc > at ? std::atoi(argv[at]) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const int seconds = number(argc, argv, 1, 60);
  const int stall_count = number(argc, argv, 2, 6);
  const int repeats = number(argc, argv, 3, 3);
  std::vector<pid_t> spinning;
  for (int i = 0; i < busy_processes; ++i)
    spinning.push_back(spawn([] {
      for (volatile std::uint64_t n = 0;;) n = n + 1;
    }));
  const auto begin = [begun = now_ns()](const char* phase) {
    std::fprintf(stderr, "%6.1f s  %s\n", static_cast<double>(now_ns() - begun) / 1e9, phase);
  };
  begin("busy");
  const auto of_load = busy(seconds);
  begin("stall");
  const auto of_stalls = stalls(stall_count);
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
    fmt::print("| {:g} s | {} | {} |", static_cast<double>(limits[i].count()) / 1e3, of_load[i],
               of_stalls[i]);
    for (const auto& of_all : times)
      fmt::print(" {} |", of_all.empty() ? "never" : fmt::format("{:.2f} s", of_all[i]));
    fmt::print("\n");
  }
  return 0;
}
