/// The part of the leader that lets nodes join and begins the job.
#include <algorithm>

#include <rrfp/core/leader_core.hpp>

namespace rrfp::membership_core {

void leader_core::after(const event::listening& e) {
  listening_ = e.address;
  host_ = e.host;
  port_ = e.port;
  if (common_.is_over()) {
    common_.act(action::job_over{});
    return begin_leaving();  // it tells the others
  }
  phase_ = leader_phase::joining;
  last_joined_ = now_;
  examine_missing(true);
  if (own() != node_id{0}) common_.act(action::look_for_node_0{});
  report_missing_nodes();
  start_if_complete();
}

void leader_core::after(const event::opened& e) {
  // A node needs one round trip and retries, so silent connections cannot block it.
  if (peers_.size() - joined_ >= std::max<std::size_t>(pending_max, common_.options.nodes))
    drop(std::find_if(peers_.begin(), peers_.end(),
                      [](const auto& p) { return p.second.at != stage::joined; })
             ->first,
         "dropped: too many pending connections");
  peers_.emplace(e.connection, peer{e.connection, e.address, e.host, now_, now_});
}

void leader_core::after(const event::proven& e) {
  auto& p = peers_.at(e.connection);
  if (common_.is_over() && e.node != own()) {
    p.node = e.node;
    return tell_end(p);
  }
  if (is_replaced(e)) {
    const auto why = name_of(e.node, {}) + " was lost: this process may not join again, because " +
                     "another one takes its place";
    return refuse(p, e.node, why, why, true, true);
  }
  if (phase_ == leader_phase::running && absent_.contains(e.node)) {
    common_.act(action::node_waits{e.node});
    return turn_away(p, name_of(e.node, {}) + " joins after the running step", true, false);
  }
  if (const auto why = why_unavailable(e.node); !why.empty()) {
    return refuse(p, e.node, why, why, true);
  }
  p.node = e.node;
  p.process = e.process;
  p.again = e.again;
  p.at = stage::introducing;
  by_node_[p.node.value()] = &p;
  common_.act(action::admit{p.id});
}

std::string leader_core::why_unavailable(node_id node) const {
  if (node == own()) return name_of(node, {}) + " is the node that listens";
  const auto name = name_of(node, {});
  if (phase_ != leader_phase::joining)
    return name + " is too late: all " + std::to_string(common_.options.nodes) +
           " nodes have joined";
  const auto* by = by_node_[node.value()];
  return by != nullptr ? name + " has already joined from " + by->address : "";
}

bool leader_core::is_replaced(const event::proven& e) const {
  if (common_.options.process == process_id{} || e.process == process_id{}) return false;
  if (common_.is_fenced(e.process)) return true;
  const auto* by = by_node_[e.node.value()];
  return e.again && by != nullptr && by->at == stage::joined && by->process != e.process;
}

void leader_core::after(const event::refused& e) {
  refuse(peers_.at(e.connection), e.node, e.reason, e.reason, e.for_now);
  if (!e.node || e.for_now || e.node->value() >= by_node_.size()) return;
  refused_[e.node->value()] = printable(e.reason, refusal_bytes_max);
  report_missing_nodes();
}

void leader_core::refuse(peer& p, std::optional<node_id> claimed, const std::string& reason,
                         const std::string& answer, bool for_now, bool lost) {
  report_refusal(p, claimed, reason);
  turn_away(p, answer, for_now, lost);
}

void leader_core::turn_away(peer& p, const std::string& answer, bool for_now, bool lost) {
  common_.act(action::refuse{p.id, answer, for_now, lost});
  p.since = now_;
  p.at = stage::refused;
}

void leader_core::report_refusal(const peer& p, std::optional<node_id> claimed,
                                 const std::string& reason) {
  if (refusals_ > refusals_reported_max) return;
  if (++refusals_ > refusals_reported_max)
    return common_.act(action::refused_join{"further refused joins are not reported"});
  const auto as = claimed ? " as " + name_of(*claimed, {}) : "";
  common_.act(action::refused_join{"refused a join from " + p.address + as + ": " + reason});
}

void leader_core::introduce_node(peer& p, const any_message& m) {
  if (std::holds_alternative<over>(m)) return learn_end(p);
  if (std::holds_alternative<inquiry>(m)) return drop(p.id, {});
  const auto* said = std::get_if<introduce>(&m);
  if (said == nullptr) return drop(p.id, "expected an introduction");
  p.description = printable(said->description);
  p.quorum = said->quorum;
  p.port = said->port;
  p.at = stage::joined;
  refused_.erase(p.node.value());
  ++joined_;
  last_joined_ = now_;
  report_missing_nodes();
  start_if_complete();
}

bool leader_core::has_joined(node_id node) const {
  const auto* p = by_node_[node.value()];
  return node == own() || (p != nullptr && p->at == stage::joined);
}

bool leader_core::is_back(node_id node) const {
  if (node == own()) return common_.options.again;
  const auto* p = by_node_[node.value()];
  return p != nullptr && p->at == stage::joined && p->again;
}

std::vector<std::set<node_id>> leader_core::quorums() const {
  std::vector<std::set<node_id>> all;
  if (!common_.options.quorum.empty()) all.push_back(common_.options.quorum);
  for (const auto* p : by_node_) {
    if (p == nullptr || p->at != stage::joined || p->quorum.empty()) continue;
    auto& of_peer = all.emplace_back();
    for (const auto n : p->quorum) of_peer.emplace(n);
  }
  return all;
}

bool leader_core::is_quorum(const std::set<node_id>& of) const {
  std::size_t back = 0, gone = 0;
  for (const auto n : of)
    if (is_back(n))
      ++back;
    else
      gone += gone_.contains(n);
  // Nodes that have ended are not left out of the count: they may have gone on with others before.
  return back + gone == of.size() || 2 * back > of.size() ||
         (2 * back == of.size() && is_back(*of.begin()));
}

void leader_core::examine_missing(bool known) {
  std::set<node_id> missing;
  for (const auto& of : quorums()) missing.insert(of.begin(), of.end());
  for (const auto n : missing)
    if (!is_back(n) && !gone_.contains(n) && !(known && common_.options.expected.contains(n)) &&
        examining_.insert(n).second)
      common_.act(action::examine{n});
  examine_due_ = now_ + (known ? rejoin_max : examine_after);
}

void leader_core::after(const event::examined& e) {
  examining_.erase(e.node);
  if (e.is_gone) gone_.insert(e.node);
  start_if_complete();
}

bool leader_core::is_enough() {
  const auto& o = common_.options;
  if (!o.hosts.may_lack_nodes()) return false;
  const bool have_come = !o.expected.empty() && std::ranges::all_of(o.expected, [this](node_id n) {
    return has_joined(n);
  });
  const bool is_late = now_ - last_joined_ >= rejoin_max;
  if (!have_come && !is_late) return false;
  std::vector<node_id> missing;
  for (std::uint32_t n = 0; n < o.nodes; ++n)
    if (!has_joined(node_id{n})) missing.emplace_back(n);
  if (!o.hosts.without(missing)) return false;
  // None: the job has not begun, or its nodes are not here.
  const auto all = quorums();
  if (all.empty()) return false;
  if (std::ranges::all_of(all, [this](const auto& of) { return is_quorum(of); })) return true;
  if (is_late && now_ >= examine_due_) examine_missing(false);
  return false;
}

void leader_core::start_if_complete() {
  if (phase_ == leader_phase::joining && (joined_ + 1 == common_.options.nodes || is_enough()))
    begin_job();
}

void leader_core::begin_job() {
  const auto& o = common_.options;
  start told{o.description};
  for (std::uint32_t n = 0; n < o.nodes; ++n) {
    const auto* p = by_node_[n];
    if (has_joined(node_id{n})) {
      const bool is_own = node_id{n} == own();
      const auto& host = is_own ? host_ : p->host;
      const auto port = is_own ? port_ : p->port;
      roster_.push_back({node_id{n}, host, is_own ? o.description : p->description});
      if (port != 0) told.successors.push_back({n, host, port});
      continue;
    }
    if (p != nullptr) drop(p->id, "the job goes on without it");
    roster_.push_back({node_id{n}, {}, {}, true});
    told.absent.push_back(n);
    absent_.insert(node_id{n});
    told_.insert(node_id{n});
  }
  common_.status.clear();
  clear_contributions();
  told.successors.resize(std::min(told.successors.size(), successors_max));
  send(members(), told);
  common_.act(action::joined{roster_, {absent_.begin(), absent_.end()}, told.successors});
  phase_ = leader_phase::running;
}

void leader_core::report_missing_nodes() {
  if (phase_ != leader_phase::joining) return;
  std::vector<std::uint32_t> missing;
  for (std::uint32_t n = 0; n < by_node_.size(); ++n)
    if (!has_joined(node_id{n})) missing.push_back(n);
  const auto waiting = missing.empty() ? "" : "waiting for " + names_of(missing);
  const auto refused = std::ranges::find_if(missing, [&](auto n) { return refused_.contains(n); });
  const auto why = refused == missing.end() ? ""
                                            : "; " + name_of(node_id{*refused}, {}) +
                                                  " was refused: " + refused_.at(*refused);
  // The heartbeats carry it to the nodes that wait, for their own messages.
  common_.status = waiting + why;
  common_.act(action::waiting{waiting + " (listening on " + listening_ + ")" + why});
}

}  // namespace rrfp::membership_core
