/// A whole cluster in virtual time: its machines, network and disk, the processes of its nodes,
/// who starts them again, the faults, and the checkers. A seed gives one run.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checks.hpp"
#include "data_network.hpp"
#include "disk.hpp"
#include "network.hpp"
#include "process.hpp"
#include "world.hpp"

namespace rrfp::cluster {

/// What a run came to.
struct outcome {
  std::string failure;  ///< empty: all checks passed
  bool is_done = false;
  std::uint64_t events = 0;
  std::uint64_t steps = 0;       ///< committed, repeated ones included
  std::uint64_t recoveries = 0;  ///< agreements on where to go on after a loss
  nanoseconds time = 0;
  nanoseconds first_commit = 0;  ///< of a step
  nanoseconds last_commit = 0;
  nanoseconds went_on = 0;  ///< the first step that was complete after the last recovery
};

class simulation {
 public:
  simulation(scenario drawn, std::FILE* trace, traffic* counted);

  outcome run();

  world w;
  ways paths;
  data_network data;
  rendezvous meeting;
  checkpoint_disk disk;
  checkers checks;

  void on_process_end(process& p);
  /// `began`: when its join began.
  void on_joined(const process& p, nanoseconds began) const;
  /// Of the machine of the node.
  nanoseconds clock_of(std::uint32_t node) const;
  bool is_slow(std::uint32_t node) const { return w.now() < slow_until_[node]; }
  process& process_at(std::uint32_t id) const { return *processes_[id]; }
  /// Whether a connection from this node finds a process of node 0 that listens.
  bool finds_node_0(std::uint32_t from) const;

 private:
  void start(std::uint32_t node);
  /// All nodes, of a job that is over.
  void launch_again(nanoseconds after);
  process& add_process(process::identity who);
  void inject(const fault& f);
  void replace(process& p, const fault& f);
  void expect_silence_noticed(const process& silent, nanoseconds until);
  void cut(const fault& f);
  void lose_power();
  void crash_host(const std::string& host);
  void set_dark(const std::string& host, bool dark);
  void interrupt(const fault& f);
  bool has_ended() const;
  bool may_give_up() const;
  void require_result() const;

  // As local_launch.cpp.
  void poll_launcher();
  void run_launcher();
  void end_nodes_within(nanoseconds limit);
  void interrupt_all();

  std::vector<std::unique_ptr<process>> processes_;
  std::vector<process*> current_;                  ///< by node
  std::map<std::uint32_t, nanoseconds> replaced_;  ///< processes, and when
  std::vector<bool> starts_;                       ///< by node: will be started
  std::vector<nanoseconds> clock_ahead_;           ///< by node
  std::vector<nanoseconds> slow_until_;            ///< by node
  std::uint32_t launches_ = 0;
  bool has_power_ = true;
  std::uint32_t generation_ = 0;  ///< of the job, as the user starts it
  std::uint32_t interrupts_ = 0;  ///< by the user, in this generation

  struct launcher {
    std::uint32_t restarts_left = 0;
    std::uint32_t forwarded = 0;  ///< interrupts
    bool has_interrupted_all = false;
    bool has_failed = false;
    std::optional<nanoseconds> terminates_at;
    std::optional<nanoseconds> kills_at;
  };
  launcher launcher_;
};

outcome run_scenario(const scenario& c, std::FILE* trace = nullptr, traffic* counted = nullptr);

}  // namespace rrfp::cluster
