#include "member.hpp"

#include "cluster.hpp"
#include "process.hpp"

namespace rrfp::cluster {

using namespace membership_core;

namespace {

nanoseconds patience_of(const scenario& c) { return c.node_timeout + 5 * s; }

std::variant<leader_core, follower_core> core_of(const process& owner) {
  const auto& c = owner.c();
  const auto node = owner.node();
  core_options o;
  o.process = owner.fence().process;
  o.again = owner.fence().has_joined;
  o.awake_at = owner.fence().awake_at;
  o.lost = owner.fence().lost;
  o.over = owner.fence().is_over;
  const auto& choice = owner.fence().choice;
  o.expected = choice.expected();
  o.leader = choice.node();
  if (choice.has_others()) o.patience = patience_of(c);
  o.may_be_away = choice.may_be_away();
  o.hosts = c.rank_places();
  if (c.may_lack_nodes()) o.quorum = choice.quorum();
  o.nodes = c.nodes;
  o.node = node_id{node};
  o.heartbeat = c.heartbeat;
  o.node_timeout = c.node_timeout;
  if (o.node == o.leader) return leader_core{std::move(o)};
  return follower_core{std::move(o)};
}

}  // namespace

member::member(process& owner, rendezvous& at, reports to, std::uint32_t version, std::uint64_t key)
    : owner_(owner),
      choice_(owner.fence().choice),
      rendezvous_(at),
      to_(std::move(to)),
      version_(version),
      key_(key),
      core_(core_of(owner)) {}

member::~member() { *lives_ = false; }

bool member::leads() const { return node_id{owner_.node()} == leader(); }

nanoseconds member::patience() const { return patience_of(owner_.c()); }

void member::begin() {
  feed(event::woke{});
  if (has_failed_) return;
  if (leads() && !choice_.next() && rendezvous_.is_listened_to()) {
    // By a stopped process of node 0.
    return to_.join_failed({"the port is in use", owner_.fence().process.value() != 0});
  }
  if (leads()) {
    listens_ = true;
    rendezvous_.listen([this] { wake(); });
    feed(event::listening{"rendezvous", owner_.c().hosts[owner_.node()], life_line_port()});
  } else {
    connect_at_ = owner_.local_now();
  }
  wake();
}

// ---- turns

void member::wake(nanoseconds after) {
  if (ended_) return;
  const auto at = owner_.w().now() + after;
  // One that comes sooner serves as well.
  if (next_turn_ >= owner_.w().now() && next_turn_ <= at) return;
  next_turn_ = at;
  owner_.later(after, [this, lives = lives_, number = ++turns_asked_] {
    if (*lives && number == turns_asked_) one_turn();
  });
}

void member::one_turn() {
  next_turn_ = -1;
  if (ended_) return;
  feed(event::woke{});
  if (connects_) return wake(owner_.c().heartbeat / 2);
  if (connect_at_ && owner_.local_now() >= *connect_at_) return connect();
  // Node 0 may have thousands of others.
  for (const auto id : std::exchange(news_, {}))
    if (const auto found = links_.find(id); found != links_.end()) receive(id, found->second);
  while (listens_) {
    auto wire = rendezvous_.accept();
    if (!wire) break;
    open_link(std::move(wire), 1);
  }
  for (const auto& e : std::exchange(requests_, {})) feed(e);
  feed(event::turn{});
  for (const auto id : std::exchange(closed_, {})) links_.erase(id);
  if (lost_ && on_lost_ && !leaving_ && !std::exchange(loss_delivered_, true)) on_lost_(*lost_);
  auto next = owner_.c().heartbeat / 2;
  if (connect_at_) next = std::clamp<nanoseconds>(*connect_at_ - owner_.local_now(), 0, next);
  wake(next);
}

void member::connect() {
  connect_at_.reset();
  connects_ = true;
  rendezvous_.connect(owner_.node(), [this, lives = lives_](auto wire, bool is_refused) {
    // Whoever has gone in the meantime leaves a connection that ends.
    if (!*lives || ended_) return wire ? wire->close(0) : void();
    owner_.later(0, [this, lives, wire, is_refused] {
      if (!*lives || ended_) return wire ? wire->close(0) : void();
      connects_ = false;
      if (wire) {
        feed(event::listening{"", owner_.c().hosts[owner_.node()], life_line_port()});
        open_link(wire, 0);
        const auto& fence = owner_.fence();
        wire->send(0, claim{version_, key_, owner_.node(), fence.process, fence.has_joined}, true);
      } else {
        feed(event::unreachable{"cannot connect to the leader", false, is_refused});
      }
      wake();
    });
  });
}

void member::open_link(std::shared_ptr<control_connection> wire, int side) {
  const connection_id id{links_opened_++};
  wire->end(side).on_arrival = [this, id] {
    news_.insert(id);
    wake();
  };
  if (!wire->end(side).inbox.empty()) wire->end(side).on_arrival();  // came before it was accepted
  const auto other = wire->end(1 - side).node;
  links_.try_emplace(id, link{std::move(wire), side});
  feed(event::opened{id, "node-" + std::to_string(other), owner_.c().hosts[other]});
}

void member::receive(connection_id id, link& l) {
  auto& end = l.wire->end(l.side);
  if (!end.inbox.empty() && !l.refused) feed(event::heard{id});
  while (!l.closed && !end.inbox.empty()) {
    const auto next = std::move(end.inbox.front());
    end.inbox.pop_front();
    if (!l.refused) take(id, l, *next);
  }
  if (!l.closed && end.inbox.empty() && end.has_ended) feed(event::closed{id, "it closed"});
}

void member::take(connection_id id, link& l, const frame& f) {
  if (l.admitted) {
    const auto* const m = std::get_if<any_message>(&f);
    return feed(event::received{id, m == nullptr ? any_message{malformed{}} : *m});
  }
  if (const auto* const said = std::get_if<claim>(&f)) {
    if (said->key != key_) return feed(event::refused{id, {}, "key refused", false});
    if (said->version != version_)
      return feed(event::refused{id, node_id{said->node}, "another version", false});
    return feed(event::proven{id, node_id{said->node}, said->process, said->again});
  }
  if (std::holds_alternative<accepted>(f)) return feed(event::proven{id, node_id{0}});
  if (const auto* const no = std::get_if<refused>(&f))
    return feed(event::refused{id, {}, no->reason, no->for_now, no->lost});
  feed(event::garbled{id, "no handshake"});
}

// ---- what the process asks for

void member::request(event::any e) {
  requests_.push_back(std::move(e));
  wake();
}

void member::exchange(std::string bytes, nanoseconds limit, bool last) {
  request(event::contributed{std::make_shared<const std::string>(std::move(bytes)), limit,
                             owner_.local_now() + limit, last});
}

void member::answer(const std::vector<std::string>& answers) {
  event::answered e;
  for (const auto& one : answers) e.answers.push_back(std::make_shared<const std::string>(one));
  request(std::move(e));
}

void member::leave() {
  leaving_ = true;
  request(event::leave{});
}

void member::set_status(std::string text) { requests_.push_back(event::status_set{text}); }

void member::on_lost(loss_handler callback) {
  on_lost_ = std::move(callback);
  wake();
}

void member::end(std::string reason) {
  if (std::exchange(ended_, true)) return;
  ended_ = false;  // the last requests are served first
  for (const auto& e : std::exchange(requests_, {})) feed(e);
  feed(event::closing{std::move(reason)});
  owner_.fence().awake_at = owner_.local_now() + linger_max;
  ended_ = true;
  stop_listening();
  for (auto& [id, l] : links_) l.wire->close(l.side);
  links_.clear();
}

void member::vanish(bool silently) {
  if (std::exchange(ended_, true)) return;
  if (std::exchange(listens_, false)) rendezvous_.stop_listening();
  for (auto& [id, l] : links_) {
    if (!silently) l.wire->close(l.side);
    l.wire->end(l.side).on_arrival = nullptr;
  }
}

void member::reset_connections() {
  for (auto& [id, l] : links_) l.wire->reset();
}

// ---- what the core decides

void member::feed(const event::any& e) {
  const auto actions =
      std::visit([&](auto& core) { return core.on(e, owner_.local_now()); }, core_);
  for (const auto& a : actions) std::visit([this](const auto& x) { carry_out(x); }, a);
}

void member::carry_out(const action::connect& a) { connect_at_ = a.at; }

void member::carry_out(const action::admit& a) {
  auto& l = links_.at(a.connection);
  if (leads()) l.wire->send(l.side, accepted{}, true);
  l.admitted = true;
}

void member::carry_out(const action::refuse& a) {
  auto& l = links_.at(a.connection);
  l.wire->send(l.side, refused{a.reason, a.for_now, a.lost}, true);
  l.refused = true;
}

void member::carry_out(const action::send& a) {
  const bool in_order =
      std::holds_alternative<goodbye>(a.content) || std::holds_alternative<no_exchange>(a.content);
  for (const auto id : a.to) {
    auto& l = links_.at(id);
    l.wire->send(l.side, a.content, !in_order);
  }
}

void member::carry_out(const action::contribute& a) {
  for (const auto id : a.to) {
    auto& l = links_.at(id);
    std::size_t sent = 0;
    do {
      piece p{a.round, a.bytes->size(), a.bytes->substr(sent, owner_.c().piece_bytes)};
      sent += p.bytes.size();
      l.wire->send(l.side, any_message{std::move(p)}, false);
    } while (sent < a.bytes->size());
  }
}

void member::carry_out(const action::close& a) {
  auto& l = links_.at(a.connection);
  l.wire->close(l.side);
  l.closed = true;
  closed_.push_back(a.connection);
}

void member::carry_out(const action::stop_listening&) { stop_listening(); }

/// The life line stays open.
void member::stop_listening() {
  if (!std::exchange(listens_, false)) return;
  if (choice_.next())
    owner_.rest_life_line();
  else
    rendezvous_.stop_listening();
}

std::uint16_t member::life_line_port() const {
  return owner_.c().may_lack_nodes() ? static_cast<std::uint16_t>(owner_.id() + 1) : 0;
}

void member::carry_out(const action::examine& a) {
  const auto at = choice_.place_of(a.node);
  if (!at) return;
  // A process that does not answer takes as long as one that is not reached.
  const auto limit = owner_.c().node_timeout;
  const bool gone = owner_.sim().process_at(at->port - 1u).is_seen_gone(owner_.node(), limit);
  owner_.later(gone ? 1 * ms : limit, [this, lives = lives_, node = a.node, gone] {
    if (!*lives || ended_) return;
    request(event::examined{node, gone});
  });
}

void member::look_for_node_0() {
  owner_.later(1 * s, [this, lives = lives_] {
    if (!*lives || ended_) return;
    if (owner_.sim().finds_node_0(owner_.node())) request(event::node_0_found{});
    look_for_node_0();
  });
}

void member::carry_out(const action::leader_returns&) { owner_.fence().choice.note_return(); }

void member::carry_out(const action::refused_join& a) { owner_.note(a.line); }
void member::carry_out(const action::gone_early& a) { owner_.note(a.line); }

void member::carry_out(const action::clock_offset& a) {
  const auto& sim = owner_.sim();
  sim.checks.on_clock_offset(owner_, a.ns,
                             sim.clock_of(leader().value()) - sim.clock_of(owner_.node()));
}

void member::carry_out(const action::fence& a) { owner_.fence().lost.insert(a.process); }

void member::carry_out(const action::job_over&) {
  owner_.fence().is_over = true;
  if (leads() && members_.empty()) to_.join_failed({"the job is over", true, false});
}

void member::carry_out(const action::joined& a) {
  auto& fence = owner_.fence();
  fence.has_joined = true;
  std::set<node_id> present;
  for (std::uint32_t n = 0; n < owner_.c().nodes; ++n) present.emplace(n);
  for (const auto n : a.absent) present.erase(n);
  fence.choice.note_joined(node_id{owner_.node()}, std::move(present), a.successors);
  members_ = a.members;
  to_.joined();
}

std::vector<node_id> member::absent() const {
  std::vector<node_id> all;
  for (const auto& m : members_)
    if (m.is_absent) all.emplace_back(m.node);
  return all;
}

void member::carry_out(const action::node_waits& a) {
  owner_.fence().choice.note_waiting(a.node);
  if (on_node_waits_) on_node_waits_(a.node);
}

void member::carry_out(const action::lost& a) {
  owner_.fence().choice.note_lost(a.node, a.is_silent);
  if (!leaving_) lost_ = a;
}

void member::carry_out(const action::left&) { to_.left(); }

void member::carry_out(const action::exchanged& a) {
  std::vector<std::string> all;
  for (const auto& one : a.all) all.push_back(*one);
  to_.exchanged(std::move(all));
}

void member::carry_out(const action::exchange_failed& a) { to_.exchanged(a.why); }

}  // namespace rrfp::cluster
