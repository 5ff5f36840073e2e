/// Whom a process joins: node 0, or after its loss the first of its successors that is there. Kept
/// over all memberships of the process.
///
/// A job that must have all nodes has no successors: then it is always node 0. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include <rrfp/core/membership_messages.hpp>

namespace rrfp::membership_core {

class leader_choice {
 public:
  /// Whom to join next. Nothing: node 0 at the rendezvous.
  const std::optional<successor>& next() const { return candidates_[candidate_]; }
  node_id node() const { return node_of(next()); }
  /// Whether node 0 leads but may not be listening at the rendezvous at the moment.
  bool may_be_away() const { return !next() && !leader_ && !is_leader_lost_; }
  bool has_others() const { return candidates_.size() > 1; }
  /// All have been tried, or none yet: there is time for a pause.
  bool is_first() const { return candidate_ == 0; }
  /// The nodes that were there before a loss, without the lost one, and those that wait.
  const std::set<node_id>& expected() const { return expected_; }
  /// The nodes that were there before a loss. Empty if this node was lost itself.
  const std::set<node_id>& quorum() const { return present_; }
  /// Where the process of a node listens, if it is a successor.
  std::optional<successor> place_of(node_id node) const;

  /// The process has joined next() as node `own`. `present`: all nodes of the membership;
  /// `successors`: in the order in which they lead.
  void note_joined(node_id own, std::set<node_id> present, std::vector<successor> successors);
  void note_lost(node_id node, bool is_silent);
  void note_waiting(node_id node) { expected_.insert(node); }
  /// Node 0, which was absent, leads again.
  void note_return();
  /// next() does not lead, or not yet.
  void note_failed_join() { candidate_ = (candidate_ + 1) % candidates_.size(); }

 private:
  static node_id node_of(const std::optional<successor>& place) {
    return node_id{place ? place->node : 0};
  }
  void choose(bool rendezvous_first);

  node_id own_;
  std::optional<successor> leader_;  ///< of the last membership
  bool is_leader_lost_ = false;
  std::vector<successor> successors_;
  std::set<node_id> present_;  ///< as quorum()
  std::set<node_id> expected_;
  /// One is tried after the other, again and again.
  std::vector<std::optional<successor>> candidates_{std::nullopt};
  std::size_t candidate_ = 0;
};

}  // namespace rrfp::membership_core
