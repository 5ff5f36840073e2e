#include <rrfp/core/leader_choice.hpp>

#include <algorithm>
#include <utility>

namespace rrfp::membership_core {

std::optional<successor> leader_choice::place_of(node_id node) const {
  const auto found = std::ranges::find(successors_, node.value(), &successor::node);
  return found == successors_.end() ? std::nullopt : std::optional{*found};
}

void leader_choice::note_joined(std::set<node_id> present, std::vector<successor> successors) {
  leader_ = next();
  is_leader_lost_ = false;
  successors_ = std::move(successors);
  expected_ = present_ = std::move(present);
  choose(!leader_);
}

void leader_choice::note_lost(node_id node, bool is_silent) {
  expected_.erase(node);
  if (node != node_of(leader_)) return;
  is_leader_lost_ = true;
  // A new process of node 0 may be there already; but a stopped one costs a whole handshake.
  choose(!leader_ && !is_silent);
}

void leader_choice::note_return() {
  expected_.insert(node_id{0});
  choose(true);
}

void leader_choice::choose(bool rendezvous_first) {
  candidates_.clear();
  candidate_ = 0;
  if (rendezvous_first) candidates_.emplace_back();
  if (leader_ && !is_leader_lost_) candidates_.emplace_back(leader_);
  for (const auto& s : successors_) {
    // Node 0 leads at the rendezvous alone, where its next process is found, too.
    const bool is_leader = node_id{s.node} == node_of(leader_);
    if (s.node != 0 && !is_leader) candidates_.emplace_back(s);
  }
  if (!rendezvous_first) candidates_.emplace_back();
}

}  // namespace rrfp::membership_core
