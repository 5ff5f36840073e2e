/// Two nodes with their own addresses, each in a network namespace, connected by a cable that can
/// be cut. Needs root and `ip`; without them the program ends with code 77: skipped.
#include <catch2/catch.hpp>

#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

const std::string job_text = R"([pipeline]
stages = 4
microbatches = 6
[model]
layers = 4
hidden = 32
heads = 4
context = 32
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 2
sequence_length = 32
[train]
steps = 3
)";

int ip(const std::string& arguments) {
  return run_program({"/bin/sh", "-c", "ip " + arguments}).code;
}

/// 10.213.77.1 in one namespace, 10.213.77.2 in the other.
class two_networks {
 public:
  two_networks() {
    const auto number = std::to_string(::getpid());
    for (int i = 0; i < 2; ++i) names_[i] = "rrfp" + number + (i == 0 ? "a" : "b");
    made_ = ip("netns add " + names_[0]) == 0 && ip("netns add " + names_[1]) == 0 &&
            ip("link add cable0 netns " + names_[0] + " type veth peer name cable0 netns " +
               names_[1]) == 0;
    for (int i = 0; made_ && i < 2; ++i)
      made_ = ip("-n " + names_[i] + " address add " + address(i) + "/24 dev cable0") == 0 &&
              ip("-n " + names_[i] + " link set cable0 up") == 0;
    for (int i = 0; made_ && i < 2; ++i) made_ = is_up(names_[i]);
  }
  two_networks(const two_networks&) = delete;
  two_networks& operator=(const two_networks&) = delete;
  ~two_networks() {
    for (const auto& name : names_) ip("netns delete " + name + " 2>/dev/null");
  }

  bool made() const { return made_; }
  static std::string address(int node) { return "10.213.77." + std::to_string(node + 1); }
  void cut() const { REQUIRE(ip("-n " + names_[0] + " link set cable0 down") == 0); }

  /// The arguments of one node of a job of two.
  std::vector<std::string> node(int rank, const std::string& job, const std::string& key) const {
    return {"/usr/bin/env", "ip",
            "netns",        "exec",
            names_[rank],   RRFP_NODE,
            "join",         job,
            "--nnodes",     "2",
            "--node-rank",  std::to_string(rank),
            "--rendezvous", address(0) + ":29577",
            "--set",        "transport.listen=" + address(rank),
            "--set",        "transport.key_file=" + key,
            "--set",        "transport.tls=tcp,self"};
  }

 private:
  /// The kernel needs a moment to detect the other end of the cable.
  static bool is_up(const std::string& name) {
    for (int i = 0; i < 500; ++i) {
      const auto shown = run_program({"/bin/sh", "-c", "ip -n " + name + " link show cable0"});
      if (shown.out.find("state UP") != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
    return false;
  }

  std::string names_[2];
  bool made_ = false;
};

class files {
 public:
  files() {
    std::ofstream{job()} << job_text;
    std::ofstream{key()} << "a key of more than sixteen bytes\n";
    std::filesystem::permissions(key(), std::filesystem::perms::owner_read);
  }
  std::string job() const { return folder_ / "job.toml"; }
  std::string key() const { return folder_ / "key"; }
  std::string at(const std::string& name) const { return folder_ / name; }

 private:
  scratch_folder folder_;
};

}  // namespace

TEST_CASE("two nodes with their own addresses train to the bits of one process") {
  const two_networks networks;
  if (!networks.made()) std::exit(77);
  const files f;
  auto first = networks.node(0, f.job(), f.key());
  first.insert(first.end(), {"--json", f.at("two.jsonl")});
  program leader{first};
  program follower{networks.node(1, f.job(), f.key())};
  const auto a = leader.wait();
  const auto b = follower.wait();
  INFO(a.out << a.err << b.out << b.err);
  REQUIRE(a.code == 0);
  CHECK(b.code == 0);
  CHECK_THAT(a.out, Contains("node 1 at 10.213.77.2") && Contains("tcp"));
  REQUIRE(run_program({RRFP_NODE, "run", f.job(), "--json", f.at("one.jsonl")}).code == 0);
  const auto one = lines_of(f.at("one.jsonl")).back();
  const auto two = lines_of(f.at("two.jsonl")).back();
  CHECK(two.at("weights_xxh64") == one.at("weights_xxh64"));
  CHECK(two.at("losses_xxh64") == one.at("losses_xxh64"));
}

TEST_CASE("a cut cable ends the job on both nodes within 2 s after the timeout") {
  const two_networks networks;
  if (!networks.made()) std::exit(77);
  const files f;
  auto first = networks.node(0, f.job(), f.key());
  first.insert(first.end(), {"--json", f.at("two.jsonl"), "--set", "train.steps=1000000"});
  auto second = networks.node(1, f.job(), f.key());
  second.insert(second.end(), {"--set", "train.steps=1000000"});
  for (auto* node : {&first, &second})
    node->insert(node->end(), {"--set", "transport.node_timeout_ms=1500"});
  program leader{first};
  program follower{second};
  for (int i = 0; i < 3000 && text_of(f.at("two.jsonl")).find("\"step\":5,") == std::string::npos;
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  std::this_thread::sleep_for(std::chrono::seconds{1});  // until heartbeats report the step
  networks.cut();
  const auto cut = std::chrono::steady_clock::now();
  const auto a = leader.wait(std::chrono::seconds{20});
  const auto b = follower.wait(std::chrono::seconds{20});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - cut;
  INFO(a.out << a.err << b.out << b.err << "ended after " << took.count() << " s");
  CHECK(a.code == 3);
  CHECK(b.code == 3);
  CHECK(took.count() < 6 * slowdown);
  CHECK_THAT(a.err, Contains("node 1 (stages 2, 3; step "));
  CHECK_THAT(b.err, Contains("node 0 (stages 0, 1; step "));
}
