/// Measures the overhead of the transport over UCX. Each number stands beside that of ucx_perftest
/// (package ucx-utils), measured alternately; the goal is a ratio of at most 1.3.
///
///   cmake --preset release && cmake --build build/release --target transport_bench
///   build/release/bin/transport_bench [--rounds N] [--checksum] [--tls T] [--bytes N] [--spin US]
///
/// Two processes, each pinned to its own core, because a wake-up tends to move one process to the
/// core on which the other still polls. latency: half the median round trip of one tensor, answered
/// by the receiving sink, against ucp_am_lat. bandwidth: tensors with a window of 16 MiB (4 to 64
/// tensors) in flight, against ucp_am_bw. The best of N rounds (default 3) counts for each side,
/// because the machine may have other work. The endpoints of both handle errors (ucx_perftest -e):
/// without that a sender to a lost node waits for ever. UCX then does not write announced data over
/// tcp into the receiver's memory itself, but sends it in fragments: half of the bandwidth. Our
/// transport moves a self-describing tensor into 64-byte-aligned memory that the receiver keeps, so
/// that messages in flight need memory of their own; ucx_perftest overwrites one buffer, which
/// stays in the cache. --checksum adds checksums of the data, which are the transport's default.
/// --spin: how long an idle progress thread polls before it sleeps; ucx_perftest never sleeps.
/// channel: half the median round trip of bytes between two threads over a rank_channel, which has
/// no counterpart in ucx_perftest (it progresses in the waiting thread).
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <rrfp/base/statistics.hpp>

#include "ucx_nodes.hpp"

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::testing;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t sizes[] = {1024, 64 * 1024, mib, 16 * mib};
/// One answer per this many messages keeps the window open; divides all windows and counts.
constexpr int answer_every = 4;
constexpr auto limit = std::chrono::seconds{120};

struct settings {
  int rounds = 3;
  bool checksum = false;
  int spin_us = 20;
  std::string tls;        ///< this alone, if given
  std::size_t bytes = 0;  ///< this alone, if given
};

double microseconds_since(clock_type::time_point begun) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - begun).count();
}

int round_trips(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>(128 * mib / bytes, 30, 10'000));
}

int messages(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>(1024 * mib / bytes, 64, 50'000) / 4 * 4);
}

std::size_t window(std::size_t bytes) { return std::clamp<std::size_t>(16 * mib / bytes, 4, 64); }

rank_address on_node(std::uint32_t number) { return {stage_id{number}, rank_id{0}}; }

message to_node(std::uint32_t to, tensor_buffer tensor) {
  return {{payload::activation, step_id{0}, microbatch_id{0}, chunk_id{0}, on_node(1 - to),
           on_node(to)},
          std::move(tensor)};
}

tensor_buffer tensor_of(std::size_t bytes) {
  auto b = make_host_buffer(dtype::uint8, {static_cast<std::int64_t>(bytes)});
  std::memset(b.data, 0, bytes);
  return b;
}

void pin_to_core(std::uint32_t side) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(side % std::thread::hardware_concurrency(), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

/// Shared memory in which the nodes leave their result for the process that prints.
double& result_slot() {
  static auto* const slot = static_cast<double*>(
      mmap(nullptr, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *slot;
}

double run_two(const std::string& tls, const settings& s, bool pinned,
               const std::function<double(ucx_transport&, test_node&)>& leads,
               const std::function<void(ucx_transport&, test_node&)>& follows) {
  const auto options = [&](test_node& node) {
    auto o = node.options();
    o.checksum_data = s.checksum;
    o.spin = std::chrono::microseconds{s.spin_us};
    o.cached_bytes_max = std::size_t{1} << 30;
    return o;
  };
  const auto problem = run_nodes(tls,
                                 {[&](test_node& node) {
                                    if (pinned) pin_to_core(0);
                                    const auto wire = node.connected(options(node));
                                    result_slot() = leads(*wire, node);
                                    node.barrier();
                                  },
                                  [&](test_node& node) {
                                    if (pinned) pin_to_core(1);
                                    const auto wire = node.connected(options(node));
                                    follows(*wire, node);
                                    node.barrier();
                                  }},
                                 false, limit);
  if (problem.empty()) return result_slot();
  std::fprintf(stderr, "transport_bench: %s\n", problem.c_str());
  std::exit(1);
}

/// Waits without polling, which would take time of the progress thread on the same core.
bool is_done(std::promise<void>& done) {
  return done.get_future().wait_for(limit) == std::future_status::ready;
}

double latency_us(const std::string& tls, std::size_t bytes, const settings& s) {
  const auto leads = [&](ucx_transport& wire, test_node& node) {
    const auto count = round_trips(bytes);
    const auto warm_up = count / 10 + 5;
    const auto tensor = tensor_of(bytes);
    std::vector<double> trips;
    const auto done = std::make_shared<std::promise<void>>();
    int trip = 0;
    auto begun = clock_type::now();
    wire.bind(on_node(0), [&, done](message) {
      if (++trip > warm_up) trips.push_back(microseconds_since(begun));
      if (trip == count + warm_up) {
        done->set_value();
        return;
      }
      begun = clock_type::now();
      wire.send(to_node(1, tensor));
    });
    node.barrier();
    begun = clock_type::now();
    wire.send(to_node(1, tensor));
    expect(is_done(*done), "the ping-pong stalled");
    return median(std::move(trips)) / 2;
  };
  const auto follows = [](ucx_transport& wire, test_node& node) {
    wire.bind(on_node(1), [&](message m) { wire.send(to_node(0, std::move(m.tensor))); });
    node.barrier();
  };
  return run_two(tls, s, true, leads, follows);
}

double bandwidth_mb(const std::string& tls, std::size_t bytes, const settings& s) {
  const auto leads = [&](ucx_transport& wire, test_node& node) {
    const auto count = messages(bytes);
    const auto tensor = tensor_of(bytes);
    const auto at_once = std::min<int>(count, static_cast<int>(window(bytes)));
    const auto done = std::make_shared<std::promise<void>>();
    int sent = 0;
    int answered = 0;
    const auto send_some = [&](int some) {
      for (; some > 0 && sent < count; --some, ++sent) wire.send(to_node(1, tensor));
    };
    wire.bind(on_node(0), [&, done](message) {
      answered += answer_every;
      send_some(answer_every);
      if (answered >= count && answered - answer_every < count) done->set_value();
    });
    node.barrier();
    const auto begun = clock_type::now();
    send_some(at_once);
    expect(is_done(*done), "the stream of tensors stalled");
    return static_cast<double>(count) * static_cast<double>(bytes) / microseconds_since(begun);
  };
  const auto follows = [](ucx_transport& wire, test_node& node) {
    const auto answer = tensor_of(1);
    wire.bind(on_node(1), [&wire, answer, got = 0](message) mutable {
      if (++got % answer_every == 0) wire.send(to_node(0, answer));
    });
    node.barrier();
  };
  return run_two(tls, s, true, leads, follows);
}

double channel_us(const std::string& tls, std::size_t bytes, const settings& s) {
  const auto play = [bytes](ucx_transport& wire, test_node& node) {
    const auto own = node.id().value();
    const auto channel = wire.open_channel({1, {on_node(0), on_node(1)}}, rank_id{own});
    const rank_id other{1 - own};
    std::vector<std::byte> data(bytes);
    std::vector<double> trips;
    node.barrier();
    for (std::uint64_t i = 0; i < 5000; ++i) {
      const auto begun = clock_type::now();
      if (own == 0) expect(channel->send(other, i, data).ok(), "the channel must accept a message");
      const auto got = channel->receive(other, i, data, limit);
      expect(got.ok() && got->has_value(), got.ok() ? "no message arrived" : got.message());
      if (own == 1) expect(channel->send(other, i, data).ok(), "the channel must accept a message");
      trips.push_back(microseconds_since(begun));
    }
    return median(std::move(trips)) / 2;
  };
  return run_two(tls, s, false, play,
                 [&](ucx_transport& wire, test_node& node) { play(wire, node); });
}

pid_t start_perftest(const std::string& tls, const std::vector<std::string>& arguments,
                     std::uint32_t side, const std::string& out) {
  const auto pid = fork();
  if (pid != 0) return pid;
  pin_to_core(side);
  setenv("UCX_TLS", tls.c_str(), 1);
  setenv("UCX_MM_ERROR_HANDLING", "y", 1);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1);
  if (std::freopen(out.c_str(), "w", stdout) == nullptr) _exit(127);
  if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(127);
  std::vector<char*> argv;
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

/// A column of perftest's last CSV line: iterations, percentile, average, overall latency, average,
/// overall bandwidth, ... NaN if there is none.
double perftest(const std::string& tls, const std::string& test, std::size_t bytes, int count,
                std::size_t column) {
  static int port = 21'000 + static_cast<int>(getpid() % 10'000);
  const auto name = "/tmp/transport-bench-" + std::to_string(getpid());
  const std::vector<std::string> common{"ucx_perftest", "-e", "-p", std::to_string(++port)};
  const auto server = start_perftest(tls, common, 0, "/dev/null");
  std::this_thread::sleep_for(std::chrono::milliseconds{300});
  auto arguments = common;
  for (const auto& a :
       {std::string{"-t"}, test, std::string{"-s"}, std::to_string(bytes), std::string{"-n"},
        std::to_string(count), std::string{"-w"}, std::to_string(count / 10 + 5), std::string{"-f"},
        std::string{"-v"}, std::string{"localhost"}})
    arguments.push_back(a);
  const auto client = start_perftest(tls, arguments, 1, name);
  const auto begun = clock_type::now();
  for (const auto pid : {client, server})
    while (waitpid(pid, nullptr, WNOHANG) == 0) {
      if (clock_type::now() - begun > limit) kill(pid, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
  std::ifstream in{name};
  std::string line;
  std::string last;
  while (std::getline(in, line))
    if (!line.empty()) last = line;
  std::remove(name.c_str());
  std::size_t at = 0;
  for (std::size_t i = 0; i < column && at != std::string::npos; ++i) at = last.find(',', at + 1);
  if (at == std::string::npos || last.find(',') == std::string::npos)
    return std::numeric_limits<double>::quiet_NaN();
  return std::atof(last.c_str() + at + 1);
}

void print_row(const std::string& tls, const char* what, std::size_t bytes, double ours,
               double theirs, double ratio) {
  std::printf("%-6s %-13s %10zu %12.2f %12.2f %8.2f\n", tls.c_str(), what, bytes, ours, theirs,
              ratio);
}

void compare(const std::string& tls, const settings& s) {
  for (const auto bytes : sizes) {
    if (s.bytes != 0 && s.bytes != bytes) continue;
    double ours = std::numeric_limits<double>::max();
    double theirs = ours;
    for (int i = 0; i < s.rounds; ++i) {
      ours = std::min(ours, latency_us(tls, bytes, s));
      theirs = std::min(theirs, perftest(tls, "ucp_am_lat", bytes, round_trips(bytes), 1));
    }
    print_row(tls, "latency us", bytes, ours, theirs, ours / theirs);
  }
  for (const auto bytes : sizes) {
    if (s.bytes != 0 && s.bytes != bytes) continue;
    double ours = 0;
    double theirs = 0;
    for (int i = 0; i < s.rounds; ++i) {
      ours = std::max(ours, bandwidth_mb(tls, bytes, s));
      // perftest counts 2^20 bytes as one megabyte.
      theirs = std::max(theirs, perftest(tls, "ucp_am_bw", bytes, messages(bytes), 5) * 1.048576);
    }
    print_row(tls, "bandwidth MB/s", bytes, ours, theirs, theirs / ours);
  }
  for (const std::size_t bytes : {8UL, 1024UL, mib}) {
    if (s.bytes != 0 && s.bytes != bytes) continue;
    double ours = std::numeric_limits<double>::max();
    for (int i = 0; i < s.rounds; ++i) ours = std::min(ours, channel_us(tls, bytes, s));
    std::printf("%-6s %-13s %10zu %12.2f\n", tls.c_str(), "channel us", bytes, ours);
  }
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--checksum") == 0) s.checksum = true;
    if (i + 1 == argc) break;
    if (std::strcmp(argv[i], "--rounds") == 0) s.rounds = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--spin") == 0) s.spin_us = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--tls") == 0) s.tls = argv[++i];
    if (std::strcmp(argv[i], "--bytes") == 0) s.bytes = std::strtoull(argv[++i], nullptr, 10);
  }
  result_slot() = 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // forked nodes must not inherit a partial line
  std::printf("%-6s %-13s %10s %12s %12s %8s\n", "UCX", "what", "bytes", "rrfp", "perftest",
              "ratio");
  for (const std::string tls : {"posix", "tcp"})
    if (s.tls.empty() || s.tls == tls) compare(tls, s);
}
