#include <rrfp/core/follower_core.hpp>

#include <algorithm>

namespace rrfp::membership_core {

std::vector<action::any> follower_core::on(const event::any& e, std::int64_t now) {
  now_ = now;
  if (expects(e)) {
    std::visit([this](const auto& x) { after(x); }, e);
    settle_exchange();
  }
  return common_.take_actions();
}

/// Events that come too late or too early end here.
bool follower_core::expects(const event::any& e) const {
  using namespace event;
  if (phase_ == follower_phase::closed) return false;
  if (is<interrupted, status_set, closing, woke, turn>(e)) return true;
  const auto connection = connection_of(e);
  const bool is_current = connection == connection_;
  if (is<leave>(e) && common_.is_over()) return true;
  switch (phase_) {
    case follower_phase::connecting: return is<listening, unreachable, opened>(e);
    case follower_phase::handshaking:
      return is_current && is<proven, refused, heard, garbled, event::closed>(e);
    case follower_phase::introduced:
    case follower_phase::measuring:
      return is_current && is<heard, received, garbled, event::closed>(e);
    case follower_phase::joined:
      if (is<contributed, leave>(e)) return true;
      return is_current && is<heard, received, garbled, event::closed>(e);
    case follower_phase::ended: return is<contributed, leave>(e);
    case follower_phase::closed: return false;
  }
  return false;
}

// ---- joining

void follower_core::after(const event::unreachable& e) {
  if (!begin_turn()) return;  // stopped while it connected
  if (!e.for_good) return retry(e.why, e.is_refused);
  phase_ = follower_phase::ended;
  common_.act(action::join_failed{e.why, false});
}

void follower_core::after(const event::opened& e) {
  if (!begin_turn()) return common_.act(action::close{e.connection});  // the same
  connection_ = e.connection;
  address_ = e.address;
  host_ = e.host;
  since_ = heard_ = now_;
  filter_ = {};  // another process may lead now, with another clock
  phase_ = follower_phase::handshaking;
}

void follower_core::after(const event::proven&) {
  phase_ = follower_phase::introduced;
  common_.act(action::admit{connection_});
  if (common_.is_over()) return send(over{});
  const auto& o = common_.options;
  if (o.inquires) {
    send(inquiry{});
    phase_ = follower_phase::ended;
    return common_.act(action::joined{});
  }
  introduce own{o.description, port_};
  for (const auto n : o.quorum) own.quorum.push_back(n.value());
  send(std::move(own));
}

void follower_core::after(const event::garbled& e) {
  if (phase_ != follower_phase::handshaking) return end_connection(e.why);
  end_join({"rendezvous " + address_ + ": " + e.why});
}

void follower_core::after(const event::refused& e) {
  if (e.lost) common_.fence(common_.options.process);
  end_join({"rendezvous " + address_ + ": " + e.reason, e.for_now});
}

void follower_core::end_join(action::join_failed why) {
  phase_ = follower_phase::ended;
  common_.act(action::close{connection_});
  common_.act(std::move(why));
}

void follower_core::retry(std::string waiting, bool is_gone) {
  const auto& o = common_.options;
  if (!began_) began_ = now_;
  if (o.patience && ((is_gone && !o.may_be_away) || now_ - *began_ >= *o.patience)) {
    phase_ = follower_phase::ended;
    return common_.act(action::join_failed{std::move(waiting), true, true});
  }
  phase_ = follower_phase::connecting;
  common_.act(action::waiting{std::move(waiting)});
  common_.act(action::connect{now_ + (o.inquires ? inquire_after : retry_after)});
}

void follower_core::become_member() {
  phase_ = follower_phase::joined;
  action::joined told{{{common_.options.leader, host_, leader_description_}}};
  for (const auto n : start_.absent) told.absent.emplace_back(n);
  told.successors = std::exchange(start_.successors, {});
  common_.act(std::move(told));
}

// ---- messages

void follower_core::after(const event::received& e) {
  if (!std::visit([this](const auto& m) { return take(m); }, e.content))
    end_connection("it sent a malformed message");
}

bool follower_core::take(const start& m) {
  if (has_started()) return false;
  leader_description_ = printable(m.description);
  start_ = m;
  leader_status_.clear();  // until now it named the missing nodes
  phase_ = follower_phase::measuring;
  if (filter_.count() >= round_trips_first) become_member();
  return true;
}

bool follower_core::take(const over&) {
  if (has_started()) return false;
  phase_ = follower_phase::ended;
  common_.act(action::close{connection_});
  leader_left_ = true;
  if (common_.is_over()) {
    if (common_.is_leaving()) common_.report_left();
    return true;
  }
  common_.end_job();
  common_.act(action::join_failed{"the job is over", true});
  return true;
}

bool follower_core::take(const leader_returns&) {
  common_.act(action::leader_returns{});
  if (has_started()) return true;
  end_join({"node 0 is there again", true});
  return true;
}

bool follower_core::take(const give_up& m) {
  if (has_started()) return false;
  end_join({printable(m.reason), true, true});
  return true;
}

bool follower_core::take(const pong& m) {
  leader_status_ = printable(m.status);
  if (!has_started() && !leader_status_.empty())
    common_.act(action::waiting{leader_name() + " is " + leader_status_});
  filter_.add(m.ping_sent_ns, m.here_ns, now_);
  common_.act(action::clock_offset{filter_.offset()});
  if (filter_.count() < round_trips_first)
    heartbeat_due_ = now_;
  else if (phase_ == follower_phase::measuring)
    become_member();
  return true;
}

bool follower_core::take(const lost& m) {
  if (m.node >= common_.options.nodes) return false;
  // One that overslept may have been replaced, whoever was lost first.
  if (node_id{m.node} == common_.options.node || common_.has_overslept(now_))
    common_.fence(common_.options.process);
  common_.lose(node_id{m.node}, printable(m.why));
  return true;
}

bool follower_core::take(const goodbye&) {
  leader_left_ = true;
  say_goodbye();  // the leader waits for it before it closes
  if (!common_.is_leaving()) return true;
  // Confirms the dismissal: without it, the leader would wait for the replacement of a killed node.
  if (common_.is_over()) send(goodbye{});
  common_.report_left();
  return true;
}

// ---- exchanges

void follower_core::after(const event::contributed& e) {
  if (!common_.begin_exchange(e) || phase_ != follower_phase::joined) return;
  common_.act(action::contribute{{connection_}, round_, e.bytes});
}

bool follower_core::take(const piece& m) {
  // The answer to an exchange that failed here is dropped.
  if (common_.has_failed()) return true;
  const auto whole = common_.is_exchanging() && m.round == round_ ? answer_.add(m) : std::nullopt;
  if (!whole) return false;
  if (*whole == nullptr) return true;
  ++round_;
  if (common_.is_last_exchange()) common_.end_job();
  common_.end_exchange({*whole});
  return true;
}

bool follower_core::take(const no_exchange& m) {
  common_.fail_exchange({printable(m.why), error_kind::node_lost});
  return true;
}

void follower_core::settle_exchange() {
  if (!common_.is_exchanging()) return;
  common_.settle_exchange();
  if (common_.is_exchanging() && leader_left_)
    common_.fail_exchange({name_of(common_.options.leader, leader_description_) +
                               " has left the job: no exchange with it",
                           error_kind::node_lost});
  if (common_.is_overdue(now_))
    common_.fail_exchange(
        {common_.overdue("no answer from " + leader_name()), error_kind::node_lost});
}

// ---- losses and time

void follower_core::end_connection(const std::string& why, bool silent) {
  // A leader that has left took this node for a member until then.
  if (!leader_left_ && common_.has_overslept(now_)) common_.fence(common_.options.process);
  const bool is_fenced = common_.is_fenced(common_.options.process);
  if (phase_ == follower_phase::handshaking) {
    common_.act(action::close{connection_});
    const bool is_stopped = why.empty();
    return retry("no handshake with " + leader_name() + " at " + address_, is_stopped);
  }
  if (phase_ == follower_phase::introduced) {
    common_.act(action::close{connection_});
    if (is_fenced) return give_up_place();
    common_.act(gone_early(leader_name(), why));
    return retry("the connection to " + leader_name() + " ended: " + why);
  }
  // The job has begun for the others: report a loss instead of joining again.
  if (phase_ == follower_phase::measuring) become_member();
  if (common_.is_over() && !leader_left_) {
    // The next process of that node must learn it.
    common_.act(action::close{connection_});
    return retry(leader_name() + " was lost after the end of the job: " + why);
  }
  if (common_.is_leaving())
    common_.report_left();
  else if (is_fenced)
    common_.lose(common_.options.node, common_.overslept());
  else if (!leader_left_)
    common_.lose(
        common_.options.leader,
        name_of(common_.options.leader, leader_description_, leader_status_) + " was lost: " + why,
        silent);
  // If the leader only stalled, it reads the notice when it resumes.
  if (silent && common_.loss() && !is_fenced)
    send(lost{common_.options.leader.value(), common_.loss()->message});
  common_.act(action::close{connection_});
  phase_ = follower_phase::ended;
}

/// Another process may have joined as this node in the meantime.
void follower_core::give_up_place() {
  common_.fence(common_.options.process);
  phase_ = follower_phase::ended;
  common_.act(action::join_failed{common_.overslept(), true});
}

bool follower_core::begin_turn() {
  common_.note_turn(now_);
  const bool gives_up = phase_ == follower_phase::connecting && common_.has_lost_place(now_);
  if (gives_up) give_up_place();
  return !gives_up;
}

void follower_core::after(const event::turn&) {
  if (!begin_turn()) return;
  const auto& o = common_.options;
  heard_ = std::min(heard_ + common_.take_stall(), now_);
  if (phase_ == follower_phase::handshaking && now_ - since_ >= handshake_max)
    return end_connection({});
  if (!is_connected()) return;
  if (now_ - heard_ > o.node_timeout)
    return end_connection("it sent no heartbeat for " + seconds_text(o.node_timeout), true);
  if (now_ < heartbeat_due_) return;
  heartbeat_due_ = now_ + o.heartbeat;
  send(ping{now_, common_.status});
}

// ---- what this process asks for

void follower_core::after(const event::leave&) {
  if (common_.is_leaving()) return;
  common_.begin_leaving();
  if (phase_ == follower_phase::joined) say_goodbye();
  if (phase_ == follower_phase::ended || leader_left_) common_.report_left();
}

void follower_core::after(const event::closing&) {
  common_.note_turn(now_);
  common_.begin_leaving();
  phase_ = follower_phase::closed;
}

void follower_core::say_goodbye() {
  if (!std::exchange(said_goodbye_, true)) send(goodbye{});
}

}  // namespace rrfp::membership_core
