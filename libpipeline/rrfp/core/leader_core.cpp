#include <rrfp/core/leader_core.hpp>

#include <algorithm>

namespace rrfp::membership_core {

std::string_view name(leader_phase p) {
  switch (p) {
    case leader_phase::opening: return "opening";
    case leader_phase::joining: return "joining";
    case leader_phase::running: return "running";
    case leader_phase::lost: return "lost";
    case leader_phase::leaving: return "leaving";
    case leader_phase::closed: return "closed";
  }
  return "?";
}

std::vector<action::any> leader_core::on(const event::any& e, std::int64_t now) {
  now_ = now;
  if (expects(e)) {
    std::visit([this](const auto& x) { after(x); }, e);
    settle_exchange();
    report_if_all_left();
  }
  return common_.take_actions();
}

/// Events that come too late or too early end here.
bool leader_core::expects(const event::any& e) const {
  using namespace event;
  const auto connection = connection_of(e);
  const auto found = connection ? peers_.find(*connection) : peers_.end();
  const auto* p = found != peers_.end() ? &found->second : nullptr;
  switch (phase_) {
    case leader_phase::opening:
      return is<listening, interrupted, status_set, closing, woke, turn>(e);
    case leader_phase::joining:
      if (is<contributed, answered, leave>(e)) return false;
      break;
    case leader_phase::running:
    case leader_phase::lost:
    case leader_phase::leaving: break;
    case leader_phase::closed: return false;
  }
  if (is<opened>(e)) return p == nullptr;
  if (is<proven>(e) && std::get<proven>(e).node.value() >= common_.options.nodes) return false;
  if (is<proven, event::refused>(e)) return p != nullptr && p->at == stage::handshaking;
  if (is<received>(e)) return p != nullptr && is_admitted(*p);
  if (is<heard, garbled, event::closed>(e)) return p != nullptr;
  return !is<listening, unreachable>(e);
}

// ---- joining

void leader_core::after(const event::listening& e) {
  listening_ = e.address;
  host_ = e.host;
  port_ = e.port;
  if (common_.is_over()) {
    common_.act(action::job_over{});
    return begin_telling();
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
  ++joined_;
  last_joined_ = now_;
  goes_on_ |= p.again;
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
  std::vector<std::set<node_id>> all{common_.options.quorum};
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
  if (!goes_on_ || !o.hosts.may_lack_nodes()) return false;
  const bool have_come = !o.expected.empty() && std::ranges::all_of(o.expected, [this](node_id n) {
    return has_joined(n);
  });
  const bool is_late = now_ - last_joined_ >= rejoin_max;
  if (!have_come && !is_late) return false;
  std::vector<node_id> missing;
  for (std::uint32_t n = 0; n < o.nodes; ++n)
    if (!has_joined(node_id{n})) missing.emplace_back(n);
  if (!o.hosts.without(missing)) return false;
  if (std::ranges::all_of(quorums(), [this](const auto& of) { return is_quorum(of); })) return true;
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
    if (node_id{n} == own()) {
      roster_.push_back({n, host_, o.description});
      if (port_ != 0) told.successors.push_back({n, host_, port_});
      continue;
    }
    if (has_joined(node_id{n})) {
      roster_.push_back({n, p->host, p->description});
      if (p->port != 0) told.successors.push_back({n, p->host, p->port});
      continue;
    }
    if (p != nullptr) drop(p->id, "the job goes on without it");
    roster_.push_back({n, {}, {}, true});
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
  // The heartbeats carry it to the nodes that wait, for their own messages.
  common_.status = missing.empty() ? "" : "waiting for " + names_of(missing);
  common_.act(action::waiting{common_.status + " (listening on " + listening_ + ")"});
}

// ---- messages

void leader_core::after(const event::received& e) {
  auto& p = peers_.at(e.connection);
  if (p.at == stage::introducing) {
    return introduce_node(p, e.content);
  }
  const auto why = std::visit([&](const auto& m) { return take(p, m); }, e.content);
  if (!why.empty()) drop(e.connection, why);
}

std::string leader_core::take(peer& p, const ping& m) {
  p.status = printable(m.status);
  send({p.id}, pong{m.sent_ns, now_, common_.status});
  return {};
}

std::string leader_core::take(peer&, const lost& m) {
  if (phase_ == leader_phase::joining || m.node != own().value())
    return "it sent a malformed message";
  if (common_.was_stalled(now_)) declare_self_lost(printable(m.why));
  return "it received no heartbeat from " + name_of(own(), {}) + " for " +
         seconds_text(common_.options.node_timeout);
}

std::string leader_core::take(peer& p, const piece& m) {
  if (phase_ == leader_phase::joining) return "it sent a malformed message";
  // Pieces of an exchange that failed here are dropped.
  if (common_.has_failed()) return {};
  auto& received = contributions_[p.node.value()];
  // After its contribution a node waits for the answer.
  const auto whole = m.round == round_ && received == nullptr ? p.arriving.add(m) : std::nullopt;
  if (!whole) return "it sent a malformed piece of an exchange";
  if (*whole == nullptr) return {};
  received = *whole;
  --contributions_missing_;
  return {};
}

std::string leader_core::take(peer& p, const goodbye&) {
  if (dismissed_ == p.id) p.ends = true;
  if (std::exchange(p.said_goodbye, true)) return {};
  if (phase_ == leader_phase::joining) return "left before the job began";
  if (common_.is_over()) {
    told_.insert(p.node);
  } else if (phase_ != leader_phase::leaving) {
    // First: the node may join its next job at this address at once.
    common_.act(action::stop_listening{});
    send({p.id}, goodbye{});
  }
  departed_.insert(p.node);
  return {};
}

void leader_core::after(const event::garbled& e) {
  auto& p = peers_.at(e.connection);
  if (p.at == stage::handshaking)
    refuse(p, {}, e.why, "not an rrfp node: " + e.why);
  else
    drop(p.id, e.why);
}

// ---- exchanges

void leader_core::after(const event::contributed& e) {
  if (!common_.begin_exchange(e)) return;
  contributions_[own().value()] = e.bytes;
  --contributions_missing_;
}

void leader_core::after(const event::answered& e) {
  if (common_.has_failed()) return;
  const auto answer = [&](std::vector<connection_id> to, const shared_bytes& bytes) {
    if (!to.empty()) common_.act(action::contribute{std::move(to), round_, bytes});
  };
  if (e.answers.size() == 1)
    answer(members(), e.answers[0]);
  else
    for (const auto* p : by_node_)
      if (p != nullptr && p->at == stage::joined) answer({p->id}, e.answers.at(p->node.value()));
  clear_contributions();
  ++round_;
  if (common_.is_last_exchange()) common_.end_job();
}

void leader_core::clear_contributions() {
  contributions_.assign(common_.options.nodes, nullptr);
  for (const auto n : absent_) contributions_[n.value()] = std::make_shared<const std::string>();
  contributions_missing_ = common_.options.nodes - absent_.size();
}

void leader_core::settle_exchange() {
  if (!common_.is_exchanging()) return;
  if (contributions_missing_ == 0) return common_.end_exchange(contributions_);
  for (const auto n : departed_)
    if (contributions_[n.value()] == nullptr)
      return fail_exchange(name_of_member(n) + " has left the job: no exchange with it");
  common_.settle_exchange();
  if (!common_.is_overdue(now_)) return;
  std::vector<std::uint32_t> missing;
  for (std::uint32_t n = 0; n < contributions_.size(); ++n)
    if (contributions_[n] == nullptr) missing.push_back(n);
  fail_exchange(common_.overdue("no contribution from " + names_of(missing)));
}

/// For all nodes; of a loss they know without being told.
void leader_core::fail_exchange(const std::string& why) {
  common_.fail_exchange({why, error_kind::node_lost});
  send(members(), no_exchange{printable(why, reason_bytes_max)});
}

// ---- losses

void leader_core::after(const event::node_0_found&) {
  if (phase_ != leader_phase::joining && phase_ != leader_phase::running) return;
  send(members(), leader_returns{});
  common_.act(action::leader_returns{});
  if (phase_ == leader_phase::running) return common_.act(action::node_waits{node_id{0}});
  common_.act(action::join_failed{"node 0 is there again", true});
  phase_ = leader_phase::closed;
}

void leader_core::drop(connection_id c, const std::string& why) {
  const auto found = peers_.find(c);
  const auto& p = found->second;
  const bool admitted = is_admitted(p);
  const bool is_loss =
      admitted && phase_ == leader_phase::running && !p.said_goodbye && !common_.is_over();
  if (!why.empty() && (p.at == stage::handshaking || p.at == stage::introducing))
    report_refusal(p, admitted ? std::optional{p.node} : std::nullopt, why);
  vacate(p);
  // It was killed before it could end: its replacement must be told again.
  if (p.at == stage::joined && common_.is_over() && !p.ends) told_.erase(p.node);
  if (is_loss && common_.has_overslept(now_))
    declare_self_lost(common_.overslept());
  else if (is_loss)
    declare_lost(p, why);
  common_.act(action::close{c});
  if (admitted && phase_ == leader_phase::joining) {
    report_missing_nodes();  // it may join again
    if (p.at == stage::joined) common_.act(gone_early(name_of(p.node, p.description), why));
  }
  peers_.erase(found);
}

void leader_core::vacate(const peer& p) {
  if (is_admitted(p)) by_node_[p.node.value()] = nullptr;
  if (p.at == stage::joined) --joined_;
}

void leader_core::declare_lost(const peer& p, const std::string& why) {
  // A restarted node must wait for the next job, not be refused by the rest of this one.
  common_.act(action::stop_listening{});
  const auto message = name_of(p.node, p.description, p.status) + " was lost: " + why;
  const lost notice{p.node.value(), message};
  send(members(), notice);
  common_.act(action::write_notices{members()});
  // If it only stalled, it reads the notice when it resumes.
  send({p.id}, notice);
  common_.fence(p.process);
  common_.lose(p.node, message);
  phase_ = leader_phase::lost;
}

void leader_core::declare_self_lost(const std::string& message) {
  if (phase_ != leader_phase::running || common_.is_over()) return;
  common_.act(action::stop_listening{});
  send(members(), lost{own().value(), message});
  common_.fence(common_.options.process);
  common_.lose(own(), message);
  phase_ = leader_phase::lost;
}

bool leader_core::all_nodes_silent() const {
  if (phase_ != leader_phase::running) return false;
  const auto limit = common_.options.node_timeout - 3 * common_.options.heartbeat;
  std::size_t silent = 0;
  for (const auto* p : by_node_) {
    if (p == nullptr || p->at != stage::joined || p->said_goodbye) continue;
    if (now_ - p->heard < limit) return false;
    ++silent;
  }
  return silent > 1;
}

// ---- time

bool leader_core::begin_turn() {
  common_.note_turn(now_);
  const auto stall = common_.take_stall();
  if (stall > 0)
    for (auto& [id, p] : peers_) p.heard = std::min(p.heard + stall, now_);
  // Another process may wait for the port, also if no node was connected.
  const bool joins = phase_ == leader_phase::opening || phase_ == leader_phase::joining;
  const bool gives_up = joins && common_.has_lost_place(now_);
  if (gives_up) give_up_place();
  return !gives_up;
}

void leader_core::after(const event::turn&) {
  if (!begin_turn()) return;
  // With many nodes, a turn follows the other within microseconds.
  if (now_ < check_due_) return;
  check_due_ = now_ + common_.options.turn() / 4;
  for (auto next = peers_.begin(); next != peers_.end();) check((next++)->second);
  start_if_complete();
}

void leader_core::check(peer& p) {
  const auto& o = common_.options;
  switch (p.at) {
    case stage::handshaking:
    case stage::introducing:
      if (now_ - p.since > handshake_max)
        drop(p.id, "it did not finish its handshake within " + seconds_text(handshake_max));
      return;
    case stage::joined: {
      if (now_ - p.heard <= o.node_timeout) return;
      const auto limit = seconds_text(o.node_timeout);
      // Its place is for another process, also while the nodes join.
      if (phase_ == leader_phase::joining) common_.fence(p.process);
      if (!all_nodes_silent()) return drop(p.id, "it sent no heartbeat for " + limit);
      return declare_self_lost(name_of(o.node, o.description, common_.status) +
                               " was lost: no other node sent it a heartbeat for " + limit);
    }
    case stage::refused:
      if (now_ - p.since > refused_max) drop(p.id, {});
      return;
  }
}

/// Another process of this node may wait for the port.
void leader_core::give_up_place() {
  common_.fence(common_.options.process);
  common_.act(action::stop_listening{});
  common_.act(action::join_failed{common_.overslept(), true});
  phase_ = leader_phase::closed;
}

// ---- what this process asks for

void leader_core::after(const event::leave&) {
  if (common_.is_leaving()) return;
  common_.begin_leaving();
  phase_ = leader_phase::leaving;
  if (common_.is_over()) return;  // who comes later is told so
  common_.act(action::stop_listening{});
  send(members(), goodbye{});
}

void leader_core::after(const event::closing& e) {
  common_.note_turn(now_);
  if (phase_ == leader_phase::joining)
    send(members(), give_up{printable(e.reason, reason_bytes_max)});
  common_.begin_leaving();
  phase_ = leader_phase::closed;
}

// ---- after the end

void leader_core::tell_end(peer& p) {
  if (p.at == stage::handshaking) common_.act(action::admit{p.id});
  send({p.id}, over{});
  vacate(p);
  told_.insert(p.node);
  p.since = now_;
  p.at = stage::refused;
}

void leader_core::begin_telling() {
  common_.begin_leaving();
  phase_ = leader_phase::leaving;
}

void leader_core::learn_end(peer& p) {
  common_.end_job();
  begin_telling();
  tell_end(p);
  for (auto* other : by_node_)
    if (other != nullptr) tell_end(*other);
}

void leader_core::report_if_all_left() {
  if (phase_ != leader_phase::leaving || !all_said_goodbye()) return;
  if (!common_.is_over() || dismiss_next()) common_.report_left();
}

bool leader_core::dismiss_next() {
  if (common_.has_left()) return true;
  const auto left = members();
  if (!left.empty() && dismissed_ != left.front()) {
    send({left.front()}, goodbye{});
    dismissed_ = left.front();
  }
  if (left.size() > 1 || (left.size() == 1 && !peers_.at(left.front()).ends)) return false;
  common_.act(action::stop_listening{});
  return true;
}

bool leader_core::all_said_goodbye() const {
  if (common_.is_over()) return told_.size() + 1 == common_.options.nodes;
  return std::all_of(by_node_.begin(), by_node_.end(), [](const peer* p) {
    return p == nullptr || p->at != stage::joined || p->said_goodbye;
  });
}

std::vector<connection_id> leader_core::members() const {
  std::vector<connection_id> all;
  for (const auto* p : by_node_)
    if (p != nullptr && p->at == stage::joined) all.push_back(p->id);
  return all;
}

void leader_core::send(std::vector<connection_id> to, any_message m) {
  if (!to.empty()) common_.act(action::send{std::move(to), std::move(m)});
}

}  // namespace rrfp::membership_core
