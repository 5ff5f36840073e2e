/// Nodes are killed at random moments of a job: the remaining nodes name the right one in time, and
/// end with code 3.
///
/// A trial is a seed: how the job runs (nodes of a launcher, or started one by one), what it runs
/// (stages, tensor-parallel ranks or replicas across nodes), which node is killed, and when.
///
/// Two kinds of kills are not a loss. Before the job has begun, nodes that were started one by one
/// wait for the killed node to join again: the trial restarts it, and all must end with 0. And no
/// node misses a node that is killed after all its work: then the log of node 0 holds the summary
/// of a finished run, and nodes that had left may have ended with 0.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <regex>

#include "eventually.hpp"
#include "http.hpp"
#include "json_lines.hpp"
#include "processes.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
namespace fs = std::filesystem;
using clock_type = std::chrono::steady_clock;
using settings = std::vector<std::string>;

constexpr std::uint32_t nodes = 3;
constexpr std::chrono::seconds report_limit{3 * slowdown};
constexpr std::size_t steps = 6;

const std::string job_text = R"([pipeline]
stages = 3
microbatches = 3
[model]
layers = 3
hidden = 32
heads = 4
context = 32
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 1
sequence_length = 32
[train]
steps = 6
lr = 1e-3
[checkpoint]
every = 2
)";

const std::vector<settings> shapes{
    {},
    {"pipeline.tp=2", "pipeline.nodes=[0, 1, 1, 2, 2, 0]"},
    {"pipeline.stages=1", "pipeline.replicas=3", "pipeline.microbatches=2"},
};

enum class moment : std::uint8_t { join, first_step, saving, end };
constexpr std::array<const char*, 4> names{"join", "first step", "saving", "end"};

/// How a trial ended.
struct outcome_of_kill {
  moment at = moment::join;
  bool launched = false;
  std::uint32_t lost = 0;
  bool right = false;
  /// Nothing was lost: the node joined again, or its work was done.
  bool no_loss = false;
  double seconds = 0;  ///< from the kill until all others have named the node; of a loss
  std::string log;     ///< all messages
};

double seconds_since(clock_type::time_point begun) {
  return std::chrono::duration<double>(clock_type::now() - begun).count();
}

/// Whether the messages name this node as lost, and no other node.
bool names_only(const std::string& text, std::uint32_t lost) {
  static const std::regex node{R"(node (\d+) \()"};
  bool any = false;
  for (std::sregex_iterator at{text.begin(), text.end(), node}, end; at != end; ++at) {
    if (std::stoul((*at)[1]) != lost) return false;
    any = true;
  }
  return any;
}

class trial {
 public:
  explicit trial(std::uint32_t seed) : random_(seed) {
    result_.at = static_cast<moment>(seed % 4);
    result_.launched = seed / 4 % 2 == 0;
    result_.lost = static_cast<std::uint32_t>(random_() % nodes);
    shape_ = shapes[random_() % shapes.size()];
    std::ofstream{folder_ / "job.toml"} << job_text;
  }

  outcome_of_kill run() {
    if (result_.launched)
      kill_launched_node();
    else
      kill_joined_node();
    return result_;
  }

 private:
  std::string json_log() const { return text_of(folder_ / "out.jsonl"); }
  bool is_done() const {
    const auto text = json_log();
    return text.find("\"ending\":\"done\"") != std::string::npos;
  }
  std::size_t steps_logged() const {
    const auto text = json_log();
    std::size_t n = 0;
    for (auto at = text.find("\"gradient_norm\""); at != std::string::npos;
         at = text.find("\"gradient_norm\"", at + 1))
      ++n;
    return n;
  }
  bool is_saving() const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator{folder_ / "checkpoints", ignored})
      if (entry.path().extension() == ".tmp") return true;
    return false;
  }

  std::vector<std::string> with_settings(std::vector<std::string> arguments) const {
    auto all = shape_;
    all.push_back("checkpoint.dir=" + (folder_ / "checkpoints"));
    for (const auto& s : all) arguments.insert(arguments.end(), {"--set", s});
    return arguments;
  }

  void pause(std::uint32_t milliseconds_max) {
    std::this_thread::sleep_for(std::chrono::microseconds{random_() % (1000 * milliseconds_max)});
  }

  /// `out`: what node 0 has printed.
  void wait_for_moment(const std::function<std::string()>& out) {
    const std::chrono::seconds limit{60};
    switch (result_.at) {
      case moment::join: return pause(600);
      case moment::first_step:
        // The line that a run begins with.
        eventually([&] { return out().find(" microbatches, ") != std::string::npos; }, limit);
        return pause(200);
      case moment::saving: {
        const auto after = random_() % steps;
        eventually([&] { return steps_logged() >= after && (is_saving() || is_done()); }, limit);
        return pause(10);
      }
      case moment::end:
        eventually([&] { return steps_logged() >= steps; }, limit);
        return pause(150);
    }
  }

  void kill_launched_node() {
    program launcher{with_settings({RRFP_NODE, "run", folder_ / "job.toml", "--local-nodes",
                                    std::to_string(nodes), "--json", folder_ / "out.jsonl"})};
    eventually([&] { return children_of(launcher.pid()).size() == nodes; },
               std::chrono::seconds{20});
    wait_for_moment([&] { return launcher.out(); });
    const auto pid = node_process(launcher.pid(), result_.lost);
    if (pid != 0) ::kill(pid, SIGKILL);
    const auto killed = clock_type::now();
    eventually([&] { return names_only(launcher.err(), result_.lost) || is_over(launcher); },
               std::chrono::seconds{30});
    result_.seconds = seconds_since(killed);
    const auto o = launcher.wait(std::chrono::seconds{30});
    result_.log = std::to_string(o.code) + " of the launcher: " + o.err;
    result_.no_loss = o.code == 0 && is_done();
    result_.right = result_.no_loss || (o.code == 3 && names_only(o.err, result_.lost) &&
                                        result_.seconds < report_limit.count());
  }

  std::unique_ptr<program> start(std::uint32_t rank) const {
    std::vector<std::string> arguments{RRFP_NODE,
                                       "join",
                                       folder_ / "job.toml",
                                       "--nnodes",
                                       std::to_string(nodes),
                                       "--node-rank",
                                       std::to_string(rank),
                                       "--rendezvous",
                                       "127.0.0.1:" + std::to_string(port_)};
    if (rank == 0) arguments.insert(arguments.end(), {"--json", folder_ / "out.jsonl"});
    return std::make_unique<program>(with_settings(std::move(arguments)));
  }

  static bool is_over(const program& p) { return parent_of(p.pid()) == 0; }

  void kill_joined_node() {
    std::vector<std::unique_ptr<program>> all;
    for (std::uint32_t rank = 0; rank < nodes; ++rank) all.push_back(start(rank));
    wait_for_moment([&] { return all[0]->out(); });
    all[result_.lost]->signal(SIGKILL);
    const auto killed = clock_type::now();
    const auto lost = all[result_.lost]->wait();
    const auto others_know = [&] {
      for (std::uint32_t rank = 0; rank < nodes; ++rank)
        if (rank != result_.lost && !is_over(*all[rank]) &&
            (!names_only(all[rank]->err(), result_.lost) || awaits_rejoin(all[rank]->err())))
          return false;
      return true;
    };
    const bool known = eventually(others_know, report_limit);
    result_.seconds = seconds_since(killed);
    if (!known) return expect_rejoin(all);
    result_.right = true;
    result_.no_loss = true;
    for (std::uint32_t rank = 0; rank < nodes; ++rank) {
      if (rank == result_.lost) continue;
      const auto o = all[rank]->wait();
      result_.log += std::to_string(o.code) + " of node " + std::to_string(rank) + ": " + o.err;
      const bool done = o.code == 0 && is_done();
      result_.no_loss &= done;
      result_.right &= done || (o.code == 3 && names_only(o.err, result_.lost));
    }
    // A node that ended by itself before the kill is not a loss.
    if (lost.code == 0 && !result_.no_loss) result_.right = false;
  }

  /// Whether a node reports that it waits for the lost node, because the job has not begun.
  bool awaits_rejoin(const std::string& err) const {
    return err.find("rrfp-node: node " + std::to_string(result_.lost) + " ") != std::string::npos &&
           err.find("waiting for it to join again") != std::string::npos;
  }

  /// The job has not begun: nodes that knew the killed node report that they wait for it.
  void expect_rejoin(std::vector<std::unique_ptr<program>>& all) {
    result_.no_loss = true;
    result_.right = true;
    for (std::uint32_t rank = 0; rank < nodes; ++rank) {
      if (rank == result_.lost) continue;
      const auto err = all[rank]->err();
      result_.log += "node " + std::to_string(rank) + " waits: " + err;
      if (!err.empty() && !awaits_rejoin(err)) result_.right = false;
    }
    all[result_.lost] = start(result_.lost);
    for (std::uint32_t rank = 0; rank < nodes; ++rank) {
      const auto o = all[rank]->wait(std::chrono::seconds{60});
      result_.log +=
          std::to_string(o.code) + " of node " + std::to_string(rank) + " at last: " + o.err;
      result_.right &= o.code == 0;
    }
    result_.right &= is_done();
  }

  std::mt19937 random_;
  outcome_of_kill result_;
  settings shape_;
  scratch_folder folder_;
  const std::uint16_t port_ = free_ports(1);
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

void kill_nodes(std::uint32_t first_seed, std::uint32_t kills) {
  std::vector<outcome_of_kill> all;
  for (std::uint32_t seed = first_seed; seed < first_seed + kills; ++seed) {
    all.push_back(trial{seed}.run());
    const auto& o = all.back();
    INFO("seed " << seed << ", " << names[static_cast<std::size_t>(o.at)] << ", node " << o.lost
                 << (o.launched ? " of a launcher" : " of three") << ", after " << o.seconds
                 << " s\n"
                 << o.log);
    CHECK(o.right);
    std::printf("seed %u: %s, node %u %s: %s after %.2f s\n", seed,
                names[static_cast<std::size_t>(o.at)], o.lost,
                o.launched ? "of a launcher" : "of three",
                !o.right    ? "WRONG"
                : o.no_loss ? "no loss"
                            : "named",
                o.seconds);
    std::fflush(stdout);
  }
  std::printf("%-12s %6s %12s %8s %8s %8s\n", "moment", "kills", "named right", "no loss", "p50 s",
              "max s");
  for (std::size_t m = 0; m < names.size(); ++m) {
    std::size_t count = 0, right = 0, no_loss = 0;
    std::vector<double> seconds;
    for (const auto& o : all) {
      if (static_cast<std::size_t>(o.at) != m) continue;
      ++count;
      no_loss += o.right && o.no_loss;
      right += o.right && !o.no_loss;
      if (!o.no_loss) seconds.push_back(o.seconds);
    }
    std::printf("%-12s %6zu %12zu %8zu %8.2f %8.2f\n", names[m], count, right, no_loss,
                quantile(seconds, 0.5), quantile(seconds, 1));
  }
  std::fflush(stdout);
}

}  // namespace

TEST_CASE("all others name a node that is killed at a random moment, in time") { kill_nodes(0, 8); }

TEST_CASE("all others name each of a hundred nodes that are killed at random moments, in time",
          "[.soak]") {
  kill_nodes(1000, 100);
}
