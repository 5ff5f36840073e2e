#include "coordinator.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include <poll.h>

namespace rrfp::actors::control {

namespace {

/// How long a refused node has to read the reason.
constexpr std::chrono::seconds refused_max{1};
/// Limit of connections in the handshake; a further one closes the oldest.
constexpr std::size_t pending_max = 64;
constexpr int refusals_reported_max = 100;
/// How long node 0 sends the notices of a loss before its own process, which may end at once, gets
/// the callback.
constexpr std::chrono::milliseconds loss_flush_max{100};
constexpr int accepts_per_turn = 16;

}  // namespace

void coordinator::watch() {
  if (const auto open = open_listener(); !open) {
    if (!closing()) report_join_failed(open.message());
    return;
  }
  report_missing_nodes();
  start_if_complete();
  while (!closing()) one_turn();

  std::vector<channel*> open;
  const auto reason = give_up_reason();
  for (auto& p : peers_) {
    if (p.state == phase::gone) continue;
    if (p.state == phase::joined && !started_)
      p.link.send(give_up{printable(reason, reason_bytes_max)});
    open.push_back(&p.link);
  }
  listener_.reset();
  wind_down(std::move(open));
  peers_.clear();
}

status coordinator::open_listener() {
  if (listener_.open()) {
    prepare(listener_.get());
  } else {
    const name_lookup lookup{options_.rendezvous_host, options_.rendezvous_port};
    while (!lookup.done() && !closing()) wait_for(lookup.fd(), POLLIN, clock::now() + turn());
    if (!lookup.done()) return error{"interrupted"};
    if (!lookup.answer()) return lookup.answer().failure();
    if (auto open = listen_at_one_of(*lookup.answer()); !open) return open;
  }
  listening_ = local_address(listener_.get());
  if (options_.key_file.empty() && !listening_.is_loopback())
    return error{fmt::format("the inherited socket listens on {}, which requires a key file",
                             listening_.text())};
  return success();
}

status coordinator::listen_at_one_of(const std::vector<address>& addresses) {
  error last{"the rendezvous host has no address"};
  for (const auto& at : addresses) {
    // Checked before the port opens.
    if (options_.key_file.empty() && !at.is_loopback())
      return error{
          fmt::format("listening on {} requires a key file: without one a job may listen on a "
                      "loopback address only (127.0.0.1)",
                      at.text())};
    auto fd = listen_at(at);
    if (fd) {
      listener_ = std::move(*fd);
      return success();
    }
    last = fd.failure();
  }
  return last;
}

void coordinator::one_turn() {
  wait_for_sockets();
  const auto slept = own_delay(clock::now());
  // Available bytes are read before any timeout is checked.
  for (auto& p : peers_)
    if (p.state != phase::gone) receive(p);
  accept_all();
  const auto now = clock::now();
  if (const auto by = slept + own_delay(now); by > clock::duration{0})
    for (auto& p : peers_) p.link.discount_stall(by);
  serve_requests();
  check_peers(now);
  for (auto& p : peers_) {
    if (p.state == phase::gone) continue;
    if (const auto sent = p.link.flush(); !sent) drop(p, sent.message());
  }
  peers_.remove_if([](const peer& p) { return p.state == phase::gone; });
  if (said_goodbye_ && all_acknowledged_leave()) report_left();
  deliver_loss();
}

void coordinator::wait_for_sockets() {
  std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}, {listener_.get(), listens_, 0}};
  for (auto& p : peers_)
    polled.push_back(
        {p.link.fd(), static_cast<short>(p.link.out().empty() ? POLLIN : POLLIN | POLLOUT), 0});
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(turn()).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(wait));
  if (polled[0].revents != 0) wake_.clear();
}

void coordinator::serve_requests() {
  while (auto mine = take_contribution())
    for_each_member(
        nullptr, [&](peer& p) { p.link.out().add_bulk(mine->type, mine->round, 0, mine->bytes); });
  if (leaving() && !said_goodbye_) {
    said_goodbye_ = true;
    listener_.reset();
    for_each_member(nullptr, [&](peer& p) { p.link.out().add(to_frame(goodbye{})); });
  }
}

bool coordinator::all_acknowledged_leave() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const peer& p) {
    return p.state != phase::joined || (p.said_goodbye && p.link.out().empty());
  });
}

void coordinator::check_peers(clock::time_point now) {
  for (auto& p : peers_) check_peer(p, now);
}

void coordinator::check_peer(peer& p, clock::time_point now) {
  switch (p.state) {
    case phase::handshaking:
    case phase::introducing:
      if (now - p.since > handshake_max)
        drop(p,
             fmt::format("it did not finish its handshake within {}", seconds_text(handshake_max)));
      return;
    case phase::joined:
      if (now - p.link.last_received() > options_.node_timeout) {
        const auto limit = seconds_text(options_.node_timeout);
        if (!all_nodes_silent(now))
          return drop(p, fmt::format("it sent no heartbeat for {}", limit));
        return declare_self_lost(
            fmt::format("{} was lost: no other node sent it a heartbeat for {}",
                        name_of(options_.node, options_.description, current_status()), limit));
      }
      return send_heartbeat_if_due(p.link, p.heartbeat_due, now);
    case phase::refused:
      if (now - p.since > refused_max) p.state = phase::gone;
      return;
    case phase::gone: return;
  }
}

void coordinator::accept_all() {
  if (!listener_.open()) return;
  for (int i = 0; i < accepts_per_turn; ++i) {
    auto fd = accept_from(listener_.get());
    // Without free descriptors poll() would always report "ready": skip the listener for one turn.
    listens_ = !fd && (errno == EMFILE || errno == ENFILE) ? 0 : POLLIN;
    if (!fd) return;
    close_oldest_pending();
    peers_.emplace_back(std::move(*fd), key_, job_);
  }
}

void coordinator::close_oldest_pending() {
  const auto pending = [](const peer& p) {
    return p.state != phase::joined && p.state != phase::gone;
  };
  if (std::count_if(peers_.begin(), peers_.end(), pending) <
      static_cast<std::ptrdiff_t>(pending_max))
    return;
  // A node needs one round trip and retries, so silent connections cannot block it.
  drop(*std::find_if(peers_.begin(), peers_.end(), pending), "closed for a newer connection");
}

void coordinator::receive(peer& p) {
  if (p.state == phase::refused) {
    if (!p.link.discard()) p.state = phase::gone;
    return;
  }
  const auto received = p.link.receive();
  // The frames before the end of the connection count: a goodbye may be among them.
  while (p.state != phase::gone && p.state != phase::refused) {
    auto next = p.link.in().next();
    if (!next) {
      if (p.state == phase::handshaking)
        refuse_join(p, to_frame(refuse{"not an rrfp node: " + next.message()}), next.message());
      else
        drop(p, next.message());
      return;
    }
    if (!next->has_value()) break;
    on_frame(p, **next);
  }
  if (!received && p.state != phase::gone) drop(p, received.message());
}

void coordinator::on_frame(peer& p, const frame& f) {
  switch (p.state) {
    case phase::handshaking: return on_handshake(p, f);
    case phase::introducing: return on_introduction(p, f);
    case phase::joined: return on_message(p, f);
    case phase::refused:
    case phase::gone: return;
  }
}

void coordinator::on_handshake(peer& p, const frame& f) {
  auto verdict = p.handshake.handle(f, [this](node_id node) { return why_unavailable(node); });
  if (!verdict) return drop(p, verdict.message());
  switch (verdict->next) {
    case server_handshake::verdict::step::more:
      return p.link.out().add_urgent(std::move(verdict->answer));
    case server_handshake::verdict::step::refused:
      return refuse_join(p, std::move(verdict->answer), verdict->reason);
    case server_handshake::verdict::step::admitted: {
      p.link.out().add_urgent(std::move(verdict->answer));
      auto keys = p.handshake.keys();
      p.link.out().seal_with(std::move(keys.from_node_0));
      p.link.in().expect_seal(std::move(keys.to_node_0));
      p.node = *p.handshake.claimed();
      p.state = phase::introducing;
      peers_by_node_[p.node.value()] = &p;
      return;
    }
  }
}

std::string coordinator::why_unavailable(node_id node) const {
  if (node.value() == 0) return "node 0 is the node that listens";
  if (started_)
    return fmt::format("node {} is too late: all {} nodes have joined", node.value(), job_.nodes);
  if (const auto* by = peers_by_node_[node.value()])
    return fmt::format("node {} has already joined from {}", node.value(),
                       by->link.other_side().text());
  return {};
}

void coordinator::on_introduction(peer& p, const frame& f) {
  auto received = f.type == frame_type::introduce ? decode<introduce>(f.payload) : std::nullopt;
  if (!received) return drop(p, "expected an introduction");
  p.description = printable(received->description);
  p.card = std::move(received->card);
  p.state = phase::joined;
  report_missing_nodes();
  start_if_complete();
}

void coordinator::on_message(peer& p, const frame& f) {
  if (f.type == frame_type::ping) {
    if (auto received = decode<ping>(f.payload)) {
      p.status = printable(received->status);
      return p.link.send(pong{received->sent_ns, ns(clock::now())});
    }
  } else if (f.type == frame_type::pong) {
    if (decode<pong>(f.payload)) return;
  } else if (f.type == frame_type::goodbye) {
    if (decode<goodbye>(f.payload)) return on_goodbye(p);
  } else if (f.type == frame_type::piece && started_) {
    if (auto received = decode<piece>(f.payload)) return on_piece(p, *received, true);
  } else if (f.type == frame_type::deposit && started_) {
    if (auto received = decode<deposit>(f.payload)) return on_piece(p, *received, false);
  } else if (f.type == frame_type::lost && started_) {
    if (auto received = decode<lost>(f.payload); received && received->node == 0)
      return on_lost_notice(p, printable(received->why));
  }
  drop(p, "it sent a malformed message");
}

void coordinator::on_lost_notice(peer& p, const std::string& message) {
  if (was_stalled(clock::now())) declare_self_lost(message);
  drop(p, fmt::format("it received no heartbeat from node 0 for {}",
                      seconds_text(options_.node_timeout)));
}

void coordinator::on_piece(peer& p, const piece& received, bool passed_on) {
  if (received.node != p.node.value())
    return drop(p, "it sent another node's piece of an exchange");
  const auto whole = add_piece(received);
  if (!whole) return drop(p, whole.message());
  if (*whole == nullptr || !passed_on) return;
  for_each_member(&p, [&](peer& other) {
    other.link.out().add_bulk(frame_type::piece, received.round, received.node, *whole);
  });
}

void coordinator::on_goodbye(peer& p) {
  if (p.said_goodbye) return;
  p.said_goodbye = true;
  if (!started_) return drop(p, "left before the job began");
  if (!said_goodbye_) p.link.out().add(to_frame(goodbye{}));
  report_departed(p.node);
  // Queued after this node's contributions, which others may not have received yet.
  for_each_member(&p,
                  [&](peer& other) { other.link.out().add(to_frame(departed{p.node.value()})); });
}

void coordinator::start_if_complete() {
  if (started_ || std::any_of(peers_by_node_.begin() + 1, peers_by_node_.end(), [](const peer* p) {
        return p == nullptr || p->state != phase::joined;
      }))
    return;
  started_ = true;
  std::vector<member> members{{options_.node, listening_.host(), card_, options_.description}};
  for (const auto* p : peers_by_node_)
    if (p != nullptr)
      members.push_back({p->node, p->link.other_side().host(), p->card, p->description});
  for_each_member(nullptr, [&](peer& p) {
    for (const auto& m : members)
      p.link.send(roster_entry{m.node.value(), m.host, m.description, m.card});
    p.link.send(start{});
  });
  report_joined(std::move(members));
}

void coordinator::report_missing_nodes() {
  std::vector<std::uint32_t> missing;
  for (std::uint32_t i = 1; i < peers_by_node_.size(); ++i)
    if (peers_by_node_[i] == nullptr || peers_by_node_[i]->state != phase::joined)
      missing.push_back(i);
  const auto text = missing.empty() ? std::string{} : "waiting for " + names_of(missing);
  report_waiting(fmt::format("{} (listening on {})", text, listening_.text()));
  // The heartbeats carry it to the nodes that wait, for their own messages.
  if (!started_) set_status(text);
}

template <class Action>
void coordinator::for_each_member(const peer* excluded, Action action) {
  for (auto* p : peers_by_node_)
    if (p != nullptr && p != excluded && p->state == phase::joined) action(*p);
}

void coordinator::drop(peer& p, const std::string& why) {
  const auto was = std::exchange(p.state, phase::gone);
  if (was == phase::handshaking || was == phase::introducing) report_refusal(p, why);
  if (was == phase::introducing || was == phase::joined) {
    if (!started_) {
      peers_by_node_[p.node.value()] = nullptr;  // it may join again
      report_missing_nodes();
      if (was == phase::joined) report_gone_early(name_of(p.node, p.description), why);
    } else if (!p.said_goodbye && !said_goodbye_) {
      declare_lost(p, why);
    }
    peers_by_node_[p.node.value()] = nullptr;
  }
}

void coordinator::refuse_join(peer& p, frame answer, const std::string& reason) {
  report_refusal(p, reason);
  p.link.out().add_urgent(std::move(answer));
  p.since = clock::now();
  p.state = phase::refused;
  if (p.link.flush()) p.link.end_writing();
}

void coordinator::report_refusal(const peer& p, const std::string& reason) {
  if (!options_.on_refused || refusals_ > refusals_reported_max) return;
  if (++refusals_ > refusals_reported_max)
    return options_.on_refused("further refused joins are not reported");
  const auto as =
      p.handshake.claimed() ? fmt::format(" as node {}", p.handshake.claimed()->value()) : "";
  options_.on_refused(
      fmt::format("refused a join from {}{}: {}", p.link.other_side().text(), as, reason));
}

bool coordinator::all_nodes_silent(clock::time_point now) const {
  if (!started_ || lost_one_ || said_goodbye_) return false;
  const auto limit = options_.node_timeout - 3 * options_.heartbeat;
  std::size_t silent = 0;
  for (const auto* p : peers_by_node_) {
    if (p == nullptr || p->state != phase::joined || p->said_goodbye) continue;
    if (now - p->link.last_received() < limit) return false;
    ++silent;
  }
  return silent > 1;
}

void coordinator::declare_self_lost(const std::string& message) {
  if (said_goodbye_ || std::exchange(lost_one_, true)) return;
  listener_.reset();
  for_each_member(nullptr, [&](peer& p) { p.link.send(lost{0, message}); });
  report_lost(options_.node, message);
}

void coordinator::declare_lost(peer& p, const std::string& why) {
  if (std::exchange(lost_one_, true)) return;
  // A restarted node must wait for the next job, not be refused by the rest of this one.
  listener_.reset();
  const auto message =
      fmt::format("{} was lost: {}", name_of(p.node, p.description, p.status), why);
  std::vector<peer*> notified;
  for_each_member(&p, [&](peer& other) { notified.push_back(&other); });
  for (auto* other : notified) other->link.send(lost{p.node.value(), message});
  const auto until = clock::now() + loss_flush_max;
  while (!notified.empty() && clock::now() < until) {
    std::erase_if(notified, [](peer* other) {
      return !other->link.flush().ok() || other->link.out().urgent_frames() == 0;
    });
    if (!notified.empty()) ::poll(nullptr, 0, 1);
  }
  // If it only stalled, it reads the notice when it resumes.
  p.link.send(lost{p.node.value(), message});
  (void)p.link.flush();
  p.link.end_writing();
  report_lost(p.node, message);
}

}  // namespace rrfp::actors::control
