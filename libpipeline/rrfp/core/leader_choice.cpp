#include <rrfp/core/leader_choice.hpp>

#include <algorithm>
#include <utility>

namespace rrfp::membership_core {

std::optional<successor> leader_choice::place_of(node_id node) const {
  const auto found = std::ranges::find(successors_, node.value(), &successor::node);
  return found == successors_.end() ? std::nullopt : std::optional{*found};
}

void leader_choice::note_joined(node_id own, std::set<node_id> present,
                                std::vector<successor> successors) {
  own_ = own;
  leader_ = next();
  is_leader_lost_ = false;
  successors_ = std::move(successors);
  expected_ = present_ = std::move(present);
  choose(!leader_);
}

void leader_choice::note_lost(node_id node, bool is_silent) {
  expected_.erase(node);
  // The others may have gone on without this process, and may even be done.
  if (node == own_) present_.clear();
  if (node != node_of(leader_)) return;
  is_leader_lost_ = true;
  // If only its connection broke, it lives; and a new process of node 0 may be there already. But a
  // stopped one costs a whole handshake.
  choose(!leader_ && !is_silent);
  if (leader_ && own_ != node_id{0})
    candidates_.insert(is_silent ? candidates_.end() : candidates_.begin(), leader_);
}

void leader_choice::note_return() {
  expected_.insert(node_id{0});
  choose(true);
}

void leader_choice::choose(bool rendezvous_first) {
  candidates_.clear();
  candidate_ = 0;
  // Node 0 waits for the others: if they have gone on without it, their leader finds it there.
  if (own_ == node_id{0}) return candidates_.assign(1, std::nullopt);
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
