/// A job that goes on after losses, its log, and the bits of its results.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "eventually.hpp"
#include "http.hpp"
#include "json_lines.hpp"
#include "processes.hpp"
#include "program.hpp"

namespace rrfp::test {

using settings = std::vector<std::string>;
using json = nlohmann::json;

inline const std::string job_text = R"([pipeline]
stages = 3
microbatches = 3
[model]
layers = 6
hidden = 32
heads = 4
context = 32
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 1
sequence_length = 32
[train]
steps = 30
lr = 1e-3
[transport]
heartbeat_ms = 100
[recovery]
max_restarts = 9
)";

/// The complete lines; a killed node may leave a part of one.
inline std::vector<json> log_of(const std::string& file) {
  std::vector<json> lines;
  std::ifstream in{file};
  for (std::string line; std::getline(in, line);)
    if (auto read = json::parse(line, nullptr, false); !read.is_discarded()) lines.push_back(read);
  return lines;
}

inline std::vector<json> events(const std::vector<json>& log, const std::string& kind) {
  std::vector<json> found;
  for (const auto& line : log)
    if (line.at("event") == kind) found.push_back(line);
  return found;
}

inline const std::vector<const char*> bits{
    "ending",    "steps",        "tokens",        "loss_first",
    "loss_last", "losses_xxh64", "weights_xxh64", "eval_losses_xxh64"};

/// Of each run that is over.
inline std::vector<json> results_of(const std::vector<json>& log,
                                    const std::vector<const char*>& keys = bits) {
  std::map<std::string, json> of_run;
  for (const auto& s : events(log, "summary")) {
    json kept{{"run", s.at("run")}};
    for (const auto* key : keys)
      if (s.contains(key)) kept[key] = s.at(key);
    of_run[s.at("run")] = kept;
  }
  std::vector<json> all;
  for (const auto& [_, kept] : of_run) all.push_back(kept);
  return all;
}

/// The same training by one process, which nobody disturbs: once for all jobs of these settings.
inline const std::vector<json>& undisturbed(const std::string& text, const settings& all) {
  settings same;
  for (const auto& s : all)
    if (!s.starts_with("jitter.") && !s.starts_with("recovery.") && !s.starts_with("checkpoint.") &&
        !s.starts_with("pipeline.nodes="))
      same.push_back(s);
  static std::map<std::pair<std::string, settings>, std::vector<json>> logs;
  auto& log = logs[{text, same}];
  if (log.empty()) {
    const scratch_folder folder;
    std::ofstream{folder / "job.toml"} << text;
    std::vector<std::string> run{RRFP_NODE, "run", folder / "job.toml", "--json",
                                 folder / "log.jsonl"};
    for (const auto& s : same) run.insert(run.end(), {"--set", s});
    const auto o = run_program(run);
    INFO(o.out << o.err);
    REQUIRE(o.code == 0);
    log = log_of(folder / "log.jsonl");
    REQUIRE_FALSE(results_of(log).empty());
  }
  return log;
}

/// A job on the nodes of a launcher.
class training {
 public:
  explicit training(std::uint32_t nodes, settings more = {}, const std::string& text = job_text,
                    std::vector<std::string> options = {})
      : nodes_(nodes), more_(std::move(more)), text_(text), options_(std::move(options)) {
    std::ofstream{folder_ / "job.toml"} << text;
  }

  void start() { run_ = std::make_unique<program>(command()); }

  std::vector<json> log() const { return log_of(folder_ / "out.jsonl"); }
  std::size_t recoveries() const { return events(log(), "recovery").size(); }
  std::string at(const std::string& name) const { return folder_ / name; }
  program& launcher() { return *run_; }

  void wait_for(const std::function<bool()>& condition) {
    INFO(run_->out() << run_->err());
    REQUIRE(eventually(condition, std::chrono::seconds{30}));
  }
  /// Until a step of this number has ended, or one after it, in the run of this name.
  void wait_for_step(std::uint64_t step, const std::string& run = "job") {
    wait_for([&] {
      const auto steps = events(log(), "step");
      return std::any_of(steps.begin(), steps.end(),
                         [&](const auto& s) { return s.at("run") == run && s.at("step") >= step; });
    });
  }
  pid_t pid_of(std::uint32_t node) const { return node_process(run_->pid(), node); }
  void signal(std::uint32_t node, int number) const {
    const auto pid = pid_of(node);
    REQUIRE(pid != 0);
    ::kill(pid, number);
  }
  void kill(std::uint32_t node) const { signal(node, SIGKILL); }

  outcome end() { return run_->wait(std::chrono::seconds{60}); }
  void check_same_bits(const std::vector<const char*>& keys = bits) {
    const auto o = end();
    INFO(o.out << o.err);
    CHECK(o.code == 0);
    CHECK(results_of(log(), keys) == results_of(undisturbed(text_, more_), keys));
  }

 private:
  std::vector<std::string> command() const {
    std::vector<std::string> all{RRFP_NODE,
                                 "run",
                                 folder_ / "job.toml",
                                 "--local-nodes",
                                 std::to_string(nodes_),
                                 "--json",
                                 folder_ / "out.jsonl"};
    for (const auto& s : more_)
      all.insert(all.end(),
                 {"--set", s == "checkpoint.dir" ? s + "=" + (folder_ / "checkpoints") : s});
    all.insert(all.end(), options_.begin(), options_.end());
    return all;
  }

  scratch_folder folder_;
  const std::uint32_t nodes_;
  const settings more_;
  const std::string text_;
  const std::vector<std::string> options_;
  std::unique_ptr<program> run_;
};

/// Nodes that are started one by one; who starts one again is the test.
class joined_nodes {
 public:
  explicit joined_nodes(std::uint32_t nodes, settings more = {})
      : more_(std::move(more)), all_(nodes) {
    std::ofstream{folder_ / "job.toml"} << job_text;
    // Messages take time, not layers, so that a run lasts longer than what happens to it.
    more_.insert(more_.begin(),
                 {"model.layers=3", "jitter.link=exponential", "jitter.link_mean_ms=30"});
    for (std::uint32_t n = 0; n < nodes; ++n) start(n);
  }

  void start(std::uint32_t node, const settings& others = {}) {
    std::vector<std::string> join{RRFP_NODE,   "join",        at("job.toml"),     "--nnodes",
                                  nodes(),     "--node-rank", name(node),         "--rendezvous",
                                  rendezvous_, "--set",       "run.progress=none"};
    for (const auto& s : more_)
      join.insert(join.end(), {"--set", s == "checkpoint.dir" ? s + "=" + at("checkpoints") : s});
    for (const auto& s : others) join.insert(join.end(), {"--set", s});
    join.insert(join.end(), {"--json", at("out.jsonl")});  // the leader writes it
    all_[node] = std::make_unique<program>(join);
  }
  void signal(std::uint32_t node, int number = SIGTERM) { all_[node]->signal(number); }
  std::string err(std::uint32_t node) const { return all_[node]->err(); }
  outcome end(std::uint32_t node) {
    auto o = all_[node]->wait(std::chrono::seconds{60});
    UNSCOPED_INFO("node " << node << ": " << o.code << "\n" << o.out << o.err);
    return o;
  }

  std::vector<json> log() const { return log_of(at("out.jsonl")); }
  std::size_t recoveries() const { return events(log(), "recovery").size(); }
  void wait_for(const std::function<bool()>& condition) const {
    if (eventually(condition, std::chrono::seconds{60})) return;
    for (std::uint32_t n = 0; n < all_.size(); ++n)
      UNSCOPED_INFO("node " << n << "\n" << all_[n]->out() << all_[n]->err());
    FAIL("not in time");
  }
  void wait_for_steps(std::size_t steps) const {
    wait_for([&] { return events(log(), "step").size() >= steps; });
  }

  const std::vector<json>& undisturbed() const { return test::undisturbed(job_text, more_); }
  /// All nodes but the lost ones.
  void check_same_bits(const std::set<std::uint32_t>& lost = {}) {
    for (std::uint32_t n = 0; n < all_.size(); ++n)
      if (!lost.contains(n)) CHECK(end(n).code == 0);
    CHECK(results_of(log()) == results_of(undisturbed()));
  }
  std::string at(const std::string& name) const { return folder_ / name; }

 private:
  static std::string name(std::size_t n) { return std::to_string(n); }
  std::string nodes() const { return name(all_.size()); }

  scratch_folder folder_;
  settings more_;
  const std::string rendezvous_ = "127.0.0.1:" + std::to_string(free_ports(1));
  std::vector<std::unique_ptr<program>> all_;
};

}  // namespace rrfp::test
