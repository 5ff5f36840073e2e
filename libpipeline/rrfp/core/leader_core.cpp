#include <rrfp/core/leader_core.hpp>

#include <algorithm>

namespace rrfp::membership_core {

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
  const bool joins = phase_ == leader_phase::opening || phase_ == leader_phase::joining;
  if (!joins || !common_.has_lost_place(now_)) return true;
  // Another process of this node may wait for the port, also if no node was connected.
  common_.fence(common_.options.process);
  common_.act(action::stop_listening{});
  common_.act(action::join_failed{common_.overslept(), true});
  phase_ = leader_phase::closed;
  return false;
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

// ---- what this process asks for

void leader_core::after(const event::leave&) {
  if (common_.is_leaving()) return;
  begin_leaving();
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

void leader_core::begin_leaving() {
  common_.begin_leaving();
  phase_ = leader_phase::leaving;
}

void leader_core::learn_end(peer& p) {
  common_.end_job();
  begin_leaving();
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
