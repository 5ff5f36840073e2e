#include "coordinator.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include <poll.h>

namespace rrfp::actors::control {

namespace {

constexpr std::chrono::seconds handshake_max{5};
/// For the reading of a refusal.
constexpr std::chrono::seconds refused_max{1};
/// Connections that are not members: the oldest gives way to the next one.
constexpr std::size_t pending_max = 64;
constexpr int refusals_reported_max = 100;
/// For the words of a loss to get out before the process hears of it, and perhaps ends at once.
constexpr std::chrono::milliseconds loss_flush_max{100};
constexpr int accepts_per_turn = 16;

}  // namespace

void coordinator::watch() {
  if (const auto open = open_listener(); !open) {
    if (!closing()) tell_join_failed(open.message());
    return;
  }
  tell_who_is_missing();
  start_if_complete();
  while (!closing()) one_turn();

  std::vector<channel*> open;
  const auto reason = give_up_reason();
  for (auto& p : peers_) {
    if (p.at == phase::gone) continue;
    if (p.at == phase::joined && !started_)
      p.link.say(give_up{printable(reason, reason_bytes_max)});
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
  listening_ = own_of(listener_.get());
  if (options_.key_file.empty() && !listening_.is_loopback())
    return error{fmt::format("the socket handed over listens on {}, which takes a key file",
                             listening_.text())};
  return success();
}

status coordinator::listen_at_one_of(const std::vector<address>& addresses) {
  error last{"the rendezvous host has no address"};
  for (const auto& at : addresses) {
    // Asked before the port opens, not after.
    if (options_.key_file.empty() && !at.is_loopback())
      return error{
          fmt::format("listening on {} takes a key file: without one a job may listen on a "
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
  const auto slept = late(clock::now());
  // What has come is read before anybody's silence is judged.
  for (auto& p : peers_)
    if (p.at != phase::gone) receive(p);
  accept_all();
  const auto now = clock::now();
  if (const auto by = slept + late(now); by > clock::duration{0})
    for (auto& p : peers_) p.link.forgive(by);
  serve_requests();
  look_after(now);
  for (auto& p : peers_) {
    if (p.at == phase::gone) continue;
    if (const auto sent = p.link.flush(); !sent) drop(p, sent.message());
  }
  peers_.remove_if([](const peer& p) { return p.at == phase::gone; });
  if (said_goodbye_ && everybody_knows_of_our_leave()) tell_left();
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
  while (auto gift = take_gift())
    for_each_member(nullptr,
                    [&](peer& p) { p.link.out().add_bulk(gift->as, gift->round, 0, gift->bytes); });
  if (leaving() && !said_goodbye_) {
    said_goodbye_ = true;
    listener_.reset();
    for_each_member(nullptr, [&](peer& p) { p.link.out().add(to_frame(goodbye{})); });
  }
}

bool coordinator::everybody_knows_of_our_leave() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const peer& p) {
    return p.at != phase::joined || (p.said_goodbye && p.link.out().empty());
  });
}

void coordinator::look_after(clock::time_point now) {
  for (auto& p : peers_) look_after(p, now);
}

void coordinator::look_after(peer& p, clock::time_point now) {
  switch (p.at) {
    case phase::greeting:
    case phase::introducing:
      if (now - p.since > handshake_max)
        drop(p, fmt::format("not through with its handshake in {}", seconds_text(handshake_max)));
      return;
    case phase::joined:
      if (now - p.link.last_heard() > options_.node_timeout) {
        const auto limit = seconds_text(options_.node_timeout);
        if (!nobody_answers(now)) return drop(p, fmt::format("no answer for {}", limit));
        return lose_self(fmt::format("{} was lost: no other node has answered it for {}",
                                     name_of(options_.rank, options_.description, current_status()),
                                     limit));
      }
      return beat(p.link, p.beat_due, now);
    case phase::refused:
      if (now - p.since > refused_max) p.at = phase::gone;
      return;
    case phase::gone: return;
  }
}

void coordinator::accept_all() {
  if (!listener_.open()) return;
  for (int i = 0; i < accepts_per_turn; ++i) {
    auto fd = accept_from(listener_.get());
    // Out of descriptors, poll() would say "ready" without end: asked again in the next turn.
    listens_ = !fd && (errno == EMFILE || errno == ENFILE) ? 0 : POLLIN;
    if (!fd) return;
    make_room();
    peers_.emplace_back(std::move(*fd), key_, job_);
  }
}

void coordinator::make_room() {
  const auto pending = [](const peer& p) { return p.at != phase::joined && p.at != phase::gone; };
  if (std::count_if(peers_.begin(), peers_.end(), pending) <
      static_cast<std::ptrdiff_t>(pending_max))
    return;
  // An honest node is through in a round trip and tries again: silence cannot keep the door shut.
  drop(*std::find_if(peers_.begin(), peers_.end(), pending), "gave way to a newer connection");
}

void coordinator::receive(peer& p) {
  if (p.at == phase::refused) {
    if (!p.link.discard()) p.at = phase::gone;
    return;
  }
  const auto received = p.link.receive();
  // The frames before the end of the connection count: a goodbye may be among them.
  while (p.at != phase::gone && p.at != phase::refused) {
    auto next = p.link.in().next();
    if (!next) {
      if (p.at == phase::greeting)
        turn_away(p, to_frame(refuse{"not a node of rrfp: " + next.message()}), next.message());
      else
        drop(p, next.message());
      return;
    }
    if (!next->has_value()) break;
    on_frame(p, **next);
  }
  if (!received && p.at != phase::gone) drop(p, received.message());
}

void coordinator::on_frame(peer& p, const frame& f) {
  switch (p.at) {
    case phase::greeting: return on_greeting(p, f);
    case phase::introducing: return on_introduction(p, f);
    case phase::joined: return on_message(p, f);
    case phase::refused:
    case phase::gone: return;
  }
}

void coordinator::on_greeting(peer& p, const frame& f) {
  auto verdict = p.door.on(f, [this](node_id node) { return seat_taken(node); });
  if (!verdict) return drop(p, verdict.message());
  switch (verdict->next) {
    case doorkeeper::verdict::step::more:
      return p.link.out().add_urgent(std::move(verdict->answer));
    case doorkeeper::verdict::step::refused:
      return turn_away(p, std::move(verdict->answer), verdict->reason);
    case doorkeeper::verdict::step::admitted: {
      p.link.out().add_urgent(std::move(verdict->answer));
      auto keys = p.door.keys();
      p.link.out().seal_with(std::move(keys.from_rank_0));
      p.link.in().expect_seal(std::move(keys.to_rank_0));
      p.node = *p.door.claimed();
      p.at = phase::introducing;
      seats_[p.node.value()] = &p;
      return;
    }
  }
}

std::string coordinator::seat_taken(node_id node) const {
  if (node.value() == 0) return "node 0 is this one, which listens";
  if (started_)
    return fmt::format("node {} comes too late: all {} nodes had joined", node.value(), job_.nodes);
  if (const auto* by = seats_[node.value()])
    return fmt::format("node {} has joined already, from {}", node.value(),
                       by->link.other_side().text());
  return {};
}

void coordinator::on_introduction(peer& p, const frame& f) {
  auto came = f.type == frame_type::introduce ? decode<introduce>(f.payload) : std::nullopt;
  if (!came) return drop(p, "expected its introduction");
  p.description = printable(came->description);
  p.card = std::move(came->card);
  p.at = phase::joined;
  tell_who_is_missing();
  start_if_complete();
}

void coordinator::on_message(peer& p, const frame& f) {
  if (f.type == frame_type::ping) {
    if (auto came = decode<ping>(f.payload)) {
      p.status = printable(came->status);
      return p.link.say(pong{came->sent_ns, ns(clock::now())});
    }
  } else if (f.type == frame_type::pong) {
    if (decode<pong>(f.payload)) return;
  } else if (f.type == frame_type::goodbye) {
    if (decode<goodbye>(f.payload)) return on_goodbye(p);
  } else if (f.type == frame_type::piece && started_) {
    if (auto came = decode<piece>(f.payload)) return on_piece(p, *came, true);
  } else if (f.type == frame_type::deposit && started_) {
    if (auto came = decode<deposit>(f.payload)) return on_piece(p, *came, false);
  } else if (f.type == frame_type::lost && started_) {
    if (auto came = decode<lost>(f.payload); came && came->rank == 0)
      return on_given_up(p, printable(came->why));
  }
  drop(p, "it sent a malformed message");
}

void coordinator::on_given_up(peer& p, const std::string& message) {
  if (stood_still(clock::now())) lose_self(message);
  drop(p, fmt::format("it heard nothing from node 0 for {}", seconds_text(options_.node_timeout)));
}

void coordinator::on_piece(peer& p, const piece& received, bool passed_on) {
  if (received.rank != p.node.value())
    return drop(p, "it sent another node's piece of an exchange");
  const auto whole = add_piece(received);
  if (!whole) return drop(p, whole.message());
  if (*whole == nullptr || !passed_on) return;
  for_each_member(&p, [&](peer& other) {
    other.link.out().add_bulk(frame_type::piece, received.round, received.rank, *whole);
  });
}

void coordinator::on_goodbye(peer& p) {
  if (p.said_goodbye) return;
  p.said_goodbye = true;
  if (!started_) return drop(p, "left before the job began");
  if (!said_goodbye_) p.link.out().add(to_frame(goodbye{}));
  tell_departed(p.node);
  // Behind what this node gave to an exchange and what is on its way to the others.
  for_each_member(&p,
                  [&](peer& other) { other.link.out().add(to_frame(departed{p.node.value()})); });
}

void coordinator::start_if_complete() {
  if (started_ || std::any_of(seats_.begin() + 1, seats_.end(),
                              [](const peer* p) { return p == nullptr || p->at != phase::joined; }))
    return;
  started_ = true;
  std::vector<member> members{{options_.rank, listening_.host(), card_, options_.description}};
  for (const auto* p : seats_)
    if (p != nullptr)
      members.push_back({p->node, p->link.other_side().host(), p->card, p->description});
  for_each_member(nullptr, [&](peer& p) {
    for (const auto& m : members)
      p.link.say(roster_entry{m.node.value(), m.host, m.description, m.card});
    p.link.say(start{});
  });
  tell_joined(std::move(members));
}

void coordinator::tell_who_is_missing() {
  std::vector<std::uint32_t> missing;
  for (std::uint32_t i = 1; i < seats_.size(); ++i)
    if (seats_[i] == nullptr || seats_[i]->at != phase::joined) missing.push_back(i);
  const auto text = missing.empty() ? std::string{} : "no word from " + names_of(missing);
  tell_waiting(fmt::format("{} (listening on {})", text, listening_.text()));
  // Heard with the heartbeats by those who wait, for their own message.
  if (!started_) set_status(text);
}

template <class Do>
void coordinator::for_each_member(const peer* but, Do what) {
  for (auto* p : seats_)
    if (p != nullptr && p != but && p->at == phase::joined) what(*p);
}

void coordinator::drop(peer& p, const std::string& why) {
  const auto was = std::exchange(p.at, phase::gone);
  if (was == phase::greeting || was == phase::introducing) report_refusal(p, why);
  if (was == phase::introducing || was == phase::joined) {
    if (!started_) {
      seats_[p.node.value()] = nullptr;  // it may come again
      tell_who_is_missing();
      if (was == phase::joined) tell_gone_early(name_of(p.node, p.description), why);
    } else if (!p.said_goodbye && !said_goodbye_) {
      lose(p, why);
    }
    seats_[p.node.value()] = nullptr;
  }
}

void coordinator::turn_away(peer& p, frame answer, const std::string& reason) {
  report_refusal(p, reason);
  p.link.out().add_urgent(std::move(answer));
  p.since = clock::now();
  p.at = phase::refused;
  if (p.link.flush()) p.link.end_writing();
}

void coordinator::report_refusal(const peer& p, const std::string& reason) {
  if (!options_.on_refused || refusals_ > refusals_reported_max) return;
  if (++refusals_ > refusals_reported_max)
    return options_.on_refused("further refused joins are not reported");
  const auto as = p.door.claimed() ? fmt::format(" as node {}", p.door.claimed()->value()) : "";
  options_.on_refused(
      fmt::format("refused a join from {}{}: {}", p.link.other_side().text(), as, reason));
}

bool coordinator::nobody_answers(clock::time_point now) const {
  if (!started_ || lost_one_ || said_goodbye_) return false;
  const auto limit = options_.node_timeout - 3 * options_.heartbeat;
  std::size_t silent = 0;
  for (const auto* p : seats_) {
    if (p == nullptr || p->at != phase::joined || p->said_goodbye) continue;
    if (now - p->link.last_heard() < limit) return false;
    ++silent;
  }
  return silent > 1;
}

void coordinator::lose_self(const std::string& message) {
  if (said_goodbye_ || std::exchange(lost_one_, true)) return;
  listener_.reset();
  for_each_member(nullptr, [&](peer& p) { p.link.say(lost{0, message}); });
  tell_lost(options_.rank, message);
}

void coordinator::lose(peer& p, const std::string& why) {
  if (std::exchange(lost_one_, true)) return;
  // Who starts again is to wait for the next job, not to be turned away from what is left of this.
  listener_.reset();
  const auto message =
      fmt::format("{} was lost: {}", name_of(p.node, p.description, p.status), why);
  std::vector<peer*> to_tell;
  for_each_member(&p, [&](peer& other) { to_tell.push_back(&other); });
  for (auto* other : to_tell) other->link.say(lost{p.node.value(), message});
  const auto until = clock::now() + loss_flush_max;
  while (!to_tell.empty() && clock::now() < until) {
    std::erase_if(to_tell, [](peer* other) {
      return !other->link.flush().ok() || other->link.out().urgent_frames() == 0;
    });
    if (!to_tell.empty()) ::poll(nullptr, 0, 1);
  }
  // If it only hung, it shall hear of it when it wakes up.
  p.link.say(lost{p.node.value(), message});
  (void)p.link.flush();
  p.link.end_writing();
  tell_lost(p.node, message);
}

}  // namespace rrfp::actors::control
