/// What the watch thread does: the loop over the sockets, and the actions of the core.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "life_line.hpp"
#include "watcher.hpp"

namespace rrfp::actors::control {

namespace {

/// Short enough that an interrupt is prompt, long enough for frames to cross a data centre.
constexpr std::chrono::milliseconds linger_max{60};
/// How long node 0 sends the notices of a loss before its own process, which may end at once, gets
/// the callback.
constexpr std::chrono::milliseconds loss_flush_max{100};

std::int64_t ns(clock::time_point t) { return t.time_since_epoch().count(); }

/// How many connections may hold memory of OpenSSL before they have joined, and how long one may
/// keep it while others wait: a node needs one round trip.
constexpr std::ptrdiff_t tls_slots = 6;
constexpr std::chrono::milliseconds tls_slot_min{100};

}  // namespace

void watcher::watch() {
  begin();
  while (!closing()) one_turn();
  serve_requests();
  std::string reason;
  {
    const std::lock_guard lock{mutex_};
    reason = give_up_reason_;
  }
  feed(event::closing{reason});
  know([](auto& known) { known.awake_at = ns(clock::now() + linger_max); });
  // While no other job can listen at this port.
  remove_files();
  listener_.reset();
  wind_down();
}

void watcher::begin() {
  feed(event::woke{});
  {
    const std::lock_guard lock{mutex_};
    if (join_failure_) return;  // it was stopped since its last membership
  }
  if (!leads()) {
    connect_at_ = clock::now();
  } else if (const auto open = open_listener(); !open) {
    listener_.reset();
    // The port may be that of an earlier process of node 0, which ends when it learns of its loss.
    const bool in_use = open.failure().kind == error_kind::node_lost;
    carry_out(action::join_failed{open.message(), in_use && options_.standing != nullptr});
  }
}

void watcher::one_turn() {
  wait_for_sockets();
  feed(event::woke{});
  if (connect_at_ && clock::now() >= *connect_at_) connect();
  // Available bytes are read before any timeout is checked.
  for (auto& [id, l] : links_)
    if (l.ready || !l.admitted) receive(id, l);
  accept_all();
  serve_requests();
  feed(event::turn{});
  flush();
  deliver_loss();
}

void watcher::wait_for_sockets() {
  std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}, {listener_.get(), listens_, 0}};
  for (const auto& [id, l] : links_) polled.push_back(l.io.polled());
  const auto until = clock::now() + turn();
  const auto left = (connect_at_ ? std::min(until, *connect_at_) : until) - clock::now();
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max<std::int64_t>(wait, 0)));
  if (polled[0].revents != 0) wake_.clear();
  auto next = polled.begin() + 2;
  for (auto& [id, l] : links_) l.ready = (next++)->revents != 0;
}

bool watcher::wait_for(int fd, short events, clock::time_point until) {
  // An earlier wait may have consumed the wake event, so the request is checked again.
  while (!closing()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd both[] = {{wake_.fd(), POLLIN, 0}, {fd, events, 0}};
    // As often as in a turn, so that only this node's own stalls look like one.
    const auto turn_ms = std::chrono::ceil<std::chrono::milliseconds>(turn()).count();
    ::poll(both, 2, static_cast<int>(std::clamp<std::int64_t>(left, 0, turn_ms)));
    feed(event::woke{});
    if (both[0].revents != 0) wake_.clear();
    if (both[1].revents != 0) return true;
    if (both[0].revents != 0 || left <= 0) return false;
  }
  return false;
}

void watcher::receive(connection_id id, link& l) {
  if (l.refused) {
    if (!l.io.discard()) feed(event::closed{id, {}});
    return;
  }
  const auto arrived = l.io.receive();
  if (!l.io.has_tls() && arrived.any) return begin_tls(id, l);
  if (arrived.any) feed(event::heard{id});
  // The frames before the end of the connection count: a goodbye may be among them.
  while (!l.closed && !l.refused) {
    auto next = l.io.in().next();
    if (!next) return feed(event::garbled{id, next.message()});
    if (!next->has_value()) break;
    if (l.admitted)
      feed(event::received{id, to_message(**next)});
    else
      feed(leads() ? judge_claim(id, job_, **next) : judge_answer(id, leader(), **next));
  }
  if (!l.closed && !l.refused) on_end(id, l, arrived);
}

void watcher::on_end(connection_id id, link& l, const channel::arrival& last) {
  switch (last.ended) {
    case tls::end::none: return;
    case tls::end::closed: return feed(event::closed{id, last.why});
    case tls::end::strange:
      return feed(event::garbled{
          id, leads() ? "expected a TLS handshake"
                      : fmt::format("the listener is not node {} of an rrfp job of this version",
                                    leader().value())});
    case tls::end::refused: return on_refused_key(id, l);
    case tls::end::invalid:
      if (l.io.is_secure())
        return feed(event::garbled{id, "got a record that fails authentication"});
      return feed(event::refused{
          id, l.io.named(),
          leads() ? "key refused" : "the listener did not prove that it has the key", false});
  }
}

/// Not on the leader.
void watcher::on_refused_key(connection_id id, const link& l) {
  auto reason = fmt::format("refused by node {}: key refused", leader().value());
  if (!run_key_file_) return feed(event::refused{id, {}, reason, false});
  if (!run_key_file_->has_changed()) {
    reason += fmt::format(" (this node has neither transport.key_file nor RRFP_KEY, and used {})",
                          run_key_file_->path());
    return feed(event::refused{id, {}, reason, false});
  }
  // Another job has ended at this port in the meantime: try again with the key that is there now.
  feed(event::closed{id, reason});
  carry_out(action::waiting{fmt::format("rendezvous {}: {}", l.io.other_side().text(), reason)});
}

void watcher::begin_tls(connection_id id, link& l) {
  if (!may_begin_tls()) return;
  auto k = key();
  if (!k) return feed(event::closed{id, k.message()});
  l.io.begin_tls(tls_, *std::move(k));
  l.tls_since = clock::now();
  receive(id, l);
}

bool watcher::may_begin_tls() {
  link* oldest = nullptr;
  connection_id id;
  std::ptrdiff_t held = 0;
  for (auto& [other, l] : links_) {
    if (!l.holds_tls_slot()) continue;
    ++held;
    if (oldest != nullptr && oldest->tls_since <= l.tls_since) continue;
    oldest = &l;
    id = other;
  }
  if (held < tls_slots) return true;
  if (clock::now() - oldest->tls_since < tls_slot_min) return false;
  feed(event::closed{id, "dropped: too many pending connections"});
  return true;
}

result<secret> watcher::key() {
  if (key_) return derive_psk(*key_);
  auto shared = run_key_file_->read_or_create();
  if (!shared) return shared.failure();
  return derive_psk(*shared);
}

void watcher::serve_requests() {
  std::deque<event::any> requests;
  {
    const std::lock_guard lock{mutex_};
    requests.swap(requests_);
  }
  for (const auto& e : requests) feed(e);
}

void watcher::flush() {
  for (auto& [id, l] : links_) {
    if (l.closed) continue;
    if (const auto sent = l.io.flush(); !sent) feed(event::closed{id, sent.message()});
  }
  std::erase_if(links_, [](const auto& l) { return l.second.closed; });
  if (may_leave_ && std::all_of(links_.begin(), links_.end(),
                                [](const auto& l) { return l.second.io.out().empty(); }))
    end_leaving();
}

void watcher::end_leaving() {
  std::function<void()> at_the_end;
  {
    const std::lock_guard lock{mutex_};
    at_the_end = std::exchange(at_the_end_, nullptr);
  }
  if (at_the_end) {
    remove_files();
    for (auto& [id, l] : links_) l.io.end_writing();
    at_the_end();
  }
  report([&] { left_ = true; });
}

void watcher::remove_files() const {
  if (!leads()) return;
  if (run_key_file_) run_key_file_->remove();
  if (end_mark_) end_mark_->remove();
}

void watcher::deliver_loss() {
  const std::lock_guard calling{calling_};
  {
    const std::lock_guard lock{mutex_};
    if (!lost_ || !on_lost_ || loss_delivered_ || leaving_) return;
    loss_delivered_ = true;
  }
  on_lost_(lost_->node, lost_->message);
}

void watcher::wind_down() {
  const auto until = clock::now() + linger_max;
  std::vector<channel*> open;
  for (auto& [id, l] : links_) open.push_back(&l.io);
  std::set<channel*> writing{open.begin(), open.end()};
  while (!open.empty() && clock::now() < until) {
    std::vector<pollfd> ends;
    for (const auto* c : open) ends.push_back(c->polled());
    std::erase_if(open, [&](channel* c) { return !c->flush().ok(); });
    for (auto* c : open)
      if (c->out().empty() && writing.erase(c) != 0) c->end_writing();
    ::poll(ends.data(), ends.size(), 5);
    std::erase_if(open, [](channel* c) { return !c->discard(); });
  }
  links_.clear();
}

// ---- what the core decides

void watcher::feed(const event::any& e) {
  const auto actions = std::visit([&](auto& core) { return core.on(e, ns(clock::now())); }, core_);
  for (const auto& a : actions) std::visit([this](const auto& x) { carry_out(x); }, a);
}

void watcher::carry_out(const action::connect& a) {
  connect_at_ = clock::time_point{std::chrono::nanoseconds{a.at}};
}

void watcher::carry_out(const action::admit& a) {
  auto& l = links_.at(a.connection);
  if (leads()) l.io.out().add_urgent(to_frame(accept{}));
  l.io.in().accept_large();
  l.admitted = true;
}

void watcher::carry_out(const action::refuse& a) {
  auto& l = links_.at(a.connection);
  l.io.refuse(to_frame(refuse{a.reason, static_cast<std::uint8_t>(a.lost ? 2 : a.for_now)}));
  l.refused = true;
}

void watcher::carry_out(const action::send& a) {
  const auto f = to_frame(a.content);
  // These follow the pieces that were sent before; the others overtake them.
  const bool in_order =
      std::holds_alternative<goodbye>(a.content) || std::holds_alternative<no_exchange>(a.content);
  for (const auto id : a.to) {
    auto& out = links_.at(id).io.out();
    in_order ? out.add(f) : out.add_urgent(f);
  }
}

void watcher::carry_out(const action::contribute& a) {
  for (const auto id : a.to) links_.at(id).io.out().add_bulk(a.round, a.bytes);
}

void watcher::carry_out(const action::write_notices& a) {
  const auto until = clock::now() + loss_flush_max;
  auto unread = a.to;
  while (!unread.empty() && clock::now() < until) {
    std::erase_if(unread, [&](connection_id id) {
      auto& io = links_.at(id).io;
      return !io.flush().ok() || io.out().urgent_frames() == 0;
    });
    if (!unread.empty()) ::poll(nullptr, 0, 1);
  }
}

void watcher::carry_out(const action::close& a) {
  auto& l = links_.at(a.connection);
  (void)l.io.flush();
  l.io.end_writing();
  l.closed = true;
}

template <class Change>
void watcher::report(Change change) {
  {
    const std::lock_guard lock{mutex_};
    change();
  }
  changed_.notify_all();
}

void watcher::carry_out(const action::waiting& a) {
  report([&] { waiting_ = a.text; });
}

void watcher::carry_out(const action::refused_join& a) {
  if (options_.on_refused) options_.on_refused(a.line);
}

void watcher::carry_out(const action::gone_early& a) {
  if (options_.on_gone_early && !closing()) options_.on_gone_early(a.line);
}

void watcher::carry_out(const action::join_failed& a) {
  report([&] { join_failure_ = a; });
}

void watcher::carry_out(const action::fence& a) {
  know([&](auto& known) { known.lost.insert(a.process); });
}

void watcher::carry_out(const action::job_over&) {
  if (end_mark_) end_mark_->set();
  know([](auto& known) { known.is_over = true; });
  report([&] {
    over_ = true;
    // Node 0 goes on, to tell it to the others that come.
    if (!joined_) join_failure_ = action::join_failed{"the job is over", true, false};
  });
}

void watcher::carry_out(const action::joined& a) {
  know([&](auto& known) {
    std::set<node_id> present;
    for (std::uint32_t n = 0; n < options_.nodes; ++n) present.emplace(n);
    for (const auto n : a.absent) present.erase(n);
    known.has_joined = true;
    known.choice.note_joined(options_.node, std::move(present), a.successors);
  });
  report([&] {
    members_ = a.members;
    joined_ = true;
  });
}

void watcher::carry_out(const action::node_waits& a) {
  know([&](auto& known) { known.choice.note_waiting(a.node); });
  const std::lock_guard calling{calling_};
  if (on_node_waits_) on_node_waits_(a.node);
}

void watcher::carry_out(const action::leader_returns&) {
  know([](auto& known) { known.choice.note_return(); });
}

void watcher::carry_out(const action::examine& a) {
  const auto at = choice_.place_of(a.node);
  if (!at) return;
  examinations_[a.node] = std::jthread{[this, at = *at](const std::stop_token& stop) {
    const bool gone = is_gone(at.host, at.port, options_.node_timeout, stop);
    post_now(event::examined{node_id{at.node}, gone});
  }};
}

void watcher::carry_out(const action::look_for_node_0&) {
  if (options_.rendezvous_port != 0)
    search_ = std::jthread{[this](const std::stop_token& stop) { search(stop); }};
}

void watcher::carry_out(const action::lost& a) {
  know([&](auto& known) { known.choice.note_lost(a.node, a.is_silent); });
  report([&] {
    if (!leaving_) lost_ = a;
  });
}

void watcher::carry_out(const action::exchanged& a) {
  report([&] { exchanged_ = a.all; });
}

void watcher::carry_out(const action::exchange_failed& a) {
  report([&] { exchanged_ = a.why; });
}

}  // namespace rrfp::actors::control
