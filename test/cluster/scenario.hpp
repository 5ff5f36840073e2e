/// What a seed draws: the job, the machines, and the faults. A shrunk run drops faults from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/core/policy.hpp>
#include <rrfp/core/rank_hosts.hpp>
#include <rrfp/core/stage_core.hpp>

#include "random_source.hpp"

namespace rrfp::cluster {

/// Virtual time, and everything measured in it.
using nanoseconds = std::int64_t;
constexpr nanoseconds us = 1000, ms = 1000 * us, s = 1000 * ms;

enum class fault_kind : std::uint8_t {
  crash,          ///< of a process
  crash_host,     ///< of all processes of a machine, without an end of their connections
  power_loss,     ///< of all machines; what is not synced may be lost
  pause,          ///< a process is suspended, and resumes
  replace,        ///< a process is suspended, another one takes its place, and it resumes
  cut,            ///< nothing passes from a node to another, or in both directions
  isolate,        ///< nothing passes between a node and all others, or in one direction
  slow_link,      ///< messages between two nodes take much longer
  reset_control,  ///< the control connection of a node breaks
  break_data,     ///< the data connection between two nodes breaks
  disk_full,
  disk_slow,
  join_stranger,  ///< of another version, or with another key
  join_twice,     ///< a second process of a node joins
  clock_jump,     ///< the clock of a machine jumps forward
  slow_node,      ///< the tasks of a node take much longer
  interrupt,      ///< the user interrupts the job, once or twice, and starts it again later
  ask_report,     ///< the user asks a node for a report
  drain,          ///< a node is told to end, and started again
};

struct fault {
  fault_kind kind = fault_kind::crash;
  nanoseconds at = 0;
  std::uint32_t node = 0;
  std::uint32_t other = 0;
  nanoseconds lasts = 0;
  std::uint64_t detail = 0;
};

/// As a line of a trace: "120.5 ms: crash of node 3".
std::string to_string(const fault& f);

/// full: 8 nodes, 8 stages of 32 microbatches, 20 steps. small: of every dimension a little.
enum class size_kind : std::uint8_t { full, small };

/// Who starts a node again: the launcher of local nodes (one for all), or a loop for each node.
enum class restart_kind : std::uint8_t { launcher, loop };

struct scenario {
  std::uint64_t seed = 0;
  std::uint32_t nodes = 2;
  std::vector<std::string> hosts;  ///< by node
  pipeline_shape shape;
  std::uint32_t ranks = 1;
  std::uint32_t replicas = 1;
  std::uint32_t runs = 1;  ///< of the job, one after the other
  std::uint64_t steps = 1;
  /// The microbatches of a step and a replica are drawn, up to those of `shape`.
  bool counts_vary = false;
  std::uint32_t microbatches_of(step_id step, replica_id replica) const;
  microbatch_counts counts_of(step_id step) const;
  /// Replicas run microbatches of others, as the leader draws it.
  bool shares_vary = false;
  /// `shape` with the most microbatches that a replica may run in a step.
  pipeline_shape widest() const;

  std::string policy;
  dispatch_mode mode = dispatch_mode::ready;
  std::uint32_t lookahead = 0;
  std::uint32_t early_forwards = 0;
  std::uint32_t weight_pieces = 1;
  bool forwards_in_order = false;
  memory_limit limit;
  std::vector<std::uint64_t> slot_bytes;  ///< by microbatch; empty: bytes are not counted
  nanoseconds task_time = 0;              ///< about

  std::uint32_t max_restarts = 0;
  /// After a loss the job goes on without the node, and whoever starts nodes may take longer.
  bool reroutes = false;
  std::uint32_t spares = 0;  ///< the last nodes
  bool may_lack_nodes() const { return reroutes || spares > 0; }
  std::uint64_t copy_every = 1;
  nanoseconds hold = 30 * s;
  struct saving {
    std::uint64_t every = 0;
    std::uint32_t keep = 1;
  };
  std::optional<saving> saves;
  struct evaluating {
    std::uint64_t every = 0;
    std::uint32_t batches = 1;
  };
  std::optional<evaluating> evaluation;

  nanoseconds heartbeat = 0;
  nanoseconds node_timeout = 0;
  std::uint64_t eager_bytes_max = 0;
  std::uint64_t inflight_bytes_max = 0;
  restart_kind restarts = restart_kind::loop;
  std::vector<nanoseconds> skew;         ///< of the clocks, by node; equal on a machine
  std::vector<std::int64_t> drift_ppm;   ///< of the same clocks
  std::vector<nanoseconds> starts_late;  ///< by node
  std::vector<fault> faults;
  // Sizes of messages: small, so that some come in several pieces.
  std::uint64_t piece_bytes = 48;
  std::uint64_t address_bytes = 0;  ///< of a session, beside its number
  std::uint64_t record_bytes = 0;   ///< of what the job knows, beside its symbols
  /// Limit of a run in which time does not pass.
  std::uint64_t events_max = 20'000'000;

  std::uint32_t stage_ranks() const { return shape.stages * ranks; }
  node_id node_of(replica_id replica, stage_id stage, rank_id rank) const {
    const auto at = (replica.value() * shape.stages + stage.value()) * ranks + rank.value();
    return node_id{at * (nodes - spares) / (replicas * stage_ranks())};
  }
  std::vector<node_id> spare_nodes() const;
  rank_hosts rank_places() const;
  /// The nodes of all ranks while these are absent.
  std::vector<node_id> places(const std::vector<node_id>& absent) const;
  /// Nothing happens that may cost a node its membership: what is slow is not dead.
  bool is_harmless() const;
  bool has(fault_kind kind) const;
  /// The time that the training takes without faults, roughly.
  nanoseconds expected_time() const;
};

scenario draw_scenario(std::uint64_t seed, size_kind size);
std::string to_string(const scenario& c);

}  // namespace rrfp::cluster
