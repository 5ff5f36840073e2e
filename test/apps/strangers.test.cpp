/// Strangers on the same machine connect to every port on which a running job of two nodes listens:
/// the run does not notice, and its processes hardly grow. RRFP_STRANGERS_S: how long each kind of
/// stranger stays connected, in seconds (2).
#include <catch2/catch.hpp>

#include <fcntl.h>

#include <random>
#include <set>

#include "http.hpp"
#include "json_lines.hpp"
#include "processes.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;

constexpr int strangers = 200;

const std::string endless_job = R"([pipeline]
stages = 2
microbatches = 8
[model]
layers = 2
hidden = 32
heads = 4
[device]
kind = "emulated"
[cost]
forward_ms = 1.0
backward_ms = 1.0
weight_ms = 1.0
[train]
steps = 1000000
)";

/// The loopback ports on which a process listens.
std::set<std::uint16_t> ports_of(pid_t pid) {
  std::set<std::string> sockets;
  std::error_code gone;
  for (const auto& fd :
       std::filesystem::directory_iterator{"/proc/" + std::to_string(pid) + "/fd", gone}) {
    const auto target = std::filesystem::read_symlink(fd.path(), gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<std::uint16_t> ports;
  std::ifstream table{"/proc/" + std::to_string(pid) + "/net/tcp"};
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields{line};
    std::string number, local, remote, state, skip, inode;
    fields >> number >> local >> remote >> state >> skip >> skip >> skip >> skip >> skip >> inode;
    constexpr auto* listens = "0A";
    if (state == listens && sockets.contains(inode))
      ports.insert(
          static_cast<std::uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

/// Memory of a process that no file backs, in bytes.
std::int64_t memory_of(pid_t pid) {
  std::ifstream status{"/proc/" + std::to_string(pid) + "/status"};
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  return 0;
}

/// A connection that sends some bytes and then stays.
class stranger {
 public:
  stranger(std::uint16_t port, const std::string& bytes) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const auto at = loopback(port);
    ::fcntl(fd_, F_SETFL, O_NONBLOCK);
    ::connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at);
    ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  stranger(stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~stranger() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  int fd_;
};

std::string random_bytes(std::size_t size) {
  std::mt19937_64 random{size};
  std::string bytes(size, 0);
  for (auto& c : bytes) c = static_cast<char>(random());
  return bytes;
}

std::uint64_t steps_in(const std::string& file) { return lines_of(file).back().value("step", 0u); }

}  // namespace

TEST_CASE("Strangers change nothing in a running job of two nodes, and cost it no memory") {
  using namespace std::string_literals;
  const char* const wanted = std::getenv("RRFP_STRANGERS_S");
  const std::chrono::seconds stay{wanted != nullptr ? std::atoi(wanted) : 2};
  const scratch_folder folder;
  std::ofstream{folder / "job.toml"} << endless_job;
  const auto lines = folder / "run.jsonl";
  // Else the address sanitizer keeps the memory that the job frees.
  const char* const options = std::getenv("ASAN_OPTIONS");
  const auto no_quarantine = "ASAN_OPTIONS="s + (options != nullptr ? options : "") +
                             ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0";
  program job{{"/usr/bin/env", no_quarantine, RRFP_NODE, "run", folder / "job.toml",
               "--local-nodes", "2", "--json", lines}};
  const auto steps_beyond = [&](std::uint64_t step) {
    for (int i = 0; i < 2000 * slowdown; ++i) {
      if (std::filesystem::exists(lines) && text_of(lines).find("\"step\"") != std::string::npos &&
          steps_in(lines) > step)
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
    return false;
  };
  REQUIRE(steps_beyond(20));
  const std::vector<pid_t> nodes{node_process(job.pid(), 0), node_process(job.pid(), 1)};
  std::set<std::uint16_t> ports;
  for (const auto node : nodes) ports.merge(ports_of(node));
  // UCX uses memory here, so only the rendezvous is open.
  CHECK(ports.size() == 1);

  const std::pair<const char*, std::string> kinds[] = {
      {"silence", ""},
      {"random bytes", random_bytes(4096)},
      {"half a TLS handshake", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s + random_bytes(200)},
      {"an HTTP request", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"},
      {"a header with a large length", "\0\0\0\0\xff\xff\xff\xff"s + std::string(56, '\0')},
      {"a UCX connection", "\x78\x56\x34\x12\xbe\xba\xfe\xca\x1f\x28\x00"s + random_bytes(40)}};
  for (const auto& [kind, bytes] : kinds) {
    INFO(kind);
    std::vector<std::int64_t> before;
    for (const auto node : nodes) before.push_back(memory_of(node));
    const auto step = steps_in(lines);
    {
      std::vector<stranger> all;
      for (const auto port : ports)
        for (int i = 0; i < strangers; ++i) all.emplace_back(port, bytes);
      std::this_thread::sleep_for(stay);
      for (std::size_t n = 0; n < nodes.size(); ++n) {
        const auto growth = memory_of(nodes[n]) - before[n];
        if (wanted != nullptr)
          WARN(kind << ": node " << n << " grew by " << growth / 1024 << " KiB");
        CHECK(growth < (1 << 20) * slowdown);  // sanitizers have memory of their own
      }
    }
    CHECK(steps_beyond(step + 20));
  }
  job.signal(SIGINT);
  const auto ended = job.wait();
  INFO(ended.out << ended.err);
  CHECK(ended.code == 130);
}
