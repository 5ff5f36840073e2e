/// Where a job goes on after the loss of a node.
///
/// When all nodes have joined again, each gets the cards of all and chooses the same point: the
/// newest step of which some node holds the copy of every rank, and some node the record.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/recovery_core/copy_set.hpp>

namespace rrfp {

/// What the losses of a job have cost so far.
struct recovery_totals {
  std::uint32_t restarts = 0;  ///< losses
  std::uint64_t repeated_steps = 0;
  double held_s = 0;  ///< from each loss until all nodes had joined again

  bool operator==(const recovery_totals&) const = default;
};

/// What a node tells all others when it has joined.
struct recovery_card {
  recovery_totals totals;  ///< what this loss has cost is not yet known
  /// The loss as this node saw it; empty: it has just started.
  std::string lost;
  double held_s = 0;        ///< since then
  std::uint64_t steps = 0;  ///< complete, of the current run
  /// The summaries of the runs of the job that are over, as bytes; the next one is the current run.
  std::vector<std::string> finished;
  std::vector<held_copy> held;
  job_record record;

  std::string to_bytes() const;
  static result<recovery_card> from_bytes(std::string_view bytes);

  bool operator==(const recovery_card&) const = default;
};

/// The same on all nodes.
struct recovery_point {
  recovery_totals totals;
  /// Empty: no node has seen a loss, the job begins.
  std::string lost;
  double held_s = 0;
  std::uint64_t steps = 0;  ///< of the current run that were complete before the loss
  std::vector<std::string> finished;

  struct source {
    node_id node;
    std::uint64_t bytes = 0;
    std::uint64_t xxh64 = 0;
  };
  /// The copies that the run goes on from, with the first node that holds them; empty: there are
  /// none, so it begins from a checkpoint or the first step.
  std::map<copy_key, source> copies;
  job_record record;

  bool has_copies() const { return !copies.empty(); }
};

/// `cards`: of all nodes, by number. `ranks`: of each run of the job, of one replica.
recovery_point choose_recovery_point(std::span<const recovery_card> cards,
                                     std::span<const std::uint32_t> ranks);

/// The node that holds the second copy of what node `owner` computes: one of `replicas`, which
/// compute the same, else a node after the owner; if possible on another host. Nothing: `owner` is
/// the only node. `hosts`: of all nodes.
std::optional<node_id> buddy_of(node_id owner, std::span<const node_id> replicas,
                                std::span<const std::string> hosts);
/// The same for a rank, of which replica 0 is copied; `node_of`: the node of each replica.
std::optional<node_id> buddy_of(std::uint32_t replicas,
                                const std::function<node_id(replica_id)>& node_of,
                                std::span<const std::string> hosts);

}  // namespace rrfp
