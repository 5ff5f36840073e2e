/// What the watch thread does: the loop over the sockets, and the actions of the core.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "watcher.hpp"

#include <poll.h>

namespace rrfp::actors::control {

namespace {

/// Short enough that an interrupt is prompt, long enough for frames to cross a data centre.
constexpr std::chrono::milliseconds linger_max{60};
/// How long node 0 sends the notices of a loss before its own process, which may end at once, gets
/// the callback.
constexpr std::chrono::milliseconds loss_flush_max{100};
constexpr std::chrono::nanoseconds connect_max{handshake_max};
constexpr int accepts_per_turn = 16;

std::int64_t ns(clock::time_point t) { return t.time_since_epoch().count(); }

short events_of(const channel& c) {
  return static_cast<short>(c.out().empty() ? POLLIN : POLLIN | POLLOUT);
}

}  // namespace

// ---- one turn

void watcher::watch() {
  if (!leads()) {
    connect_at_ = clock::now();
  } else if (const auto open = open_listener(); !open) {
    listener_.reset();
    carry_out(action::join_failed{open.message(), false});
  }
  while (!closing()) one_turn();
  serve_requests();
  std::string reason;
  {
    const std::lock_guard lock{mutex_};
    reason = give_up_reason_;
  }
  feed(event::closing{reason});
  listener_.reset();
  wind_down();
}

void watcher::one_turn() {
  wait_for_sockets();
  feed(event::woke{});
  if (connect_at_ && clock::now() >= *connect_at_) connect();
  // Available bytes are read before any timeout is checked.
  for (auto& [id, l] : links_) receive(id, l);
  accept_all();
  serve_requests();
  feed(event::turn{});
  flush();
  deliver_loss();
}

void watcher::wait_for_sockets() {
  std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}, {listener_.get(), listens_, 0}};
  for (auto& [id, l] : links_) polled.push_back({l.io.fd(), events_of(l.io), 0});
  const auto until = clock::now() + turn();
  const auto left = (connect_at_ ? std::min(until, *connect_at_) : until) - clock::now();
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max<std::int64_t>(wait, 0)));
  if (polled[0].revents != 0) wake_.clear();
}

void watcher::receive(connection_id id, link& l) {
  if (l.refused) {
    if (!l.io.discard()) feed(event::closed{id, {}});
    return;
  }
  const auto received = l.io.receive();
  if (received && *received) feed(event::heard{id});
  // The frames before the end of the connection count: a goodbye may be among them.
  while (!l.closed && !l.refused) {
    auto next = l.io.in().next();
    if (!next) return feed(event::garbled{id, next.message()});
    if (!next->has_value()) break;
    if (l.handshake.index() != 0)
      on_handshake(id, l, **next);
    else
      feed(event::received{id, to_message(**next)});
  }
  if (!received && !l.closed) feed(event::closed{id, received.message()});
}

void watcher::on_handshake(connection_id id, link& l, const frame& f) {
  const auto take = [&](auto& handshake) {
    auto v = handshake.handle(f);
    if (!v) return feed(event::closed{id, v.message()});
    switch (v->next) {
      case verdict::step::more: return l.io.out().add_urgent(std::move(v->answer));
      case verdict::step::proven: return feed(event::proven{id, *handshake.claimed()});
      case verdict::step::refused:
        return feed(event::refused{id, handshake.claimed(), v->reason, v->for_now});
    }
  };
  if (auto* server = std::get_if<server_handshake>(&l.handshake)) return take(*server);
  take(std::get<client_handshake>(l.handshake));
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
    report([&] { left_ = true; });
}

void watcher::deliver_loss() {
  const std::lock_guard calling{calling_};
  std::function<void(node_id, std::string)> callback;
  action::lost lost;
  {
    const std::lock_guard lock{mutex_};
    if (!lost_ || !on_lost_ || loss_delivered_ || leaving_) return;
    loss_delivered_ = true;
    callback = on_lost_;
    lost = *lost_;
  }
  callback(lost.node, lost.message);
}

// ---- connections

status watcher::open_listener() {
  if (listener_.open()) {
    prepare(listener_.get());
  } else {
    const name_lookup lookup{options_.rendezvous_host, options_.rendezvous_port};
    while (!lookup.done() && !closing()) wait_for(lookup.fd(), POLLIN, clock::now() + turn());
    if (!lookup.done()) return error{"interrupted"};
    if (!lookup.answer()) return lookup.answer().failure();
    if (auto open = listen_at_one_of(*lookup.answer()); !open) return open;
  }
  const auto at = local_address(listener_.get());
  if (options_.key_file.empty() && !at.is_loopback())
    return error{
        fmt::format("the inherited socket listens on {}, which requires a key file", at.text())};
  feed(event::listening{at.text(), at.host()});
  return success();
}

status watcher::listen_at_one_of(const std::vector<address>& addresses) {
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

void watcher::accept_all() {
  for (int i = 0; i < accepts_per_turn && listener_.open(); ++i) {
    auto fd = accept_from(listener_.get());
    // Without free descriptors poll() would always report "ready": skip the listener for one turn.
    listens_ = !fd && (errno == EMFILE || errno == ENFILE) ? 0 : POLLIN;
    if (!fd) return;
    open_link<server_handshake>(std::move(*fd));
  }
}

void watcher::connect() {
  connect_at_.reset();
  const name_lookup lookup{options_.rendezvous_host, options_.rendezvous_port};
  while (!lookup.done() && !closing()) wait_for(lookup.fd(), POLLIN, clock::now() + turn());
  if (!lookup.done()) return;
  if (!lookup.answer()) return feed(event::unreachable{"rendezvous " + lookup.answer().message()});
  const auto random = fresh_nonce();
  if (!random) return feed(event::unreachable{random.message(), true});
  std::string problem;
  for (const auto& to : *lookup.answer()) {
    if (options_.key_file.empty() && !to.is_loopback())
      return feed(event::unreachable{
          fmt::format("joining at {} requires a key file: without one a job may use a "
                      "loopback address only",
                      to.text()),
          true});
    auto fd = connect_to(to, problem);
    if (!fd) continue;
    auto& l = open_link<client_handshake>(*std::move(fd), options_.node, *random);
    return l.io.out().add_urgent(std::get<client_handshake>(l.handshake).greeting());
  }
  feed(event::unreachable{fmt::format("cannot connect to the rendezvous {}", problem)});
}

std::optional<file_descriptor> watcher::connect_to(const address& to, std::string& problem) {
  auto fd = begin_connect(to);
  problem = fd.ok() ? to.text() + ": connection timed out" : fd.message();
  if (!fd || !wait_for(fd->get(), POLLOUT, clock::now() + connect_max)) return std::nullopt;
  if (const int failed = connect_error(fd->get()); failed != 0) {
    problem = fmt::format("{}: {}", to.text(), std::strerror(failed));
    return std::nullopt;
  }
  // While the port is free, TCP may connect the socket to itself.
  if (local_address(fd->get()).text() == to.text()) return std::nullopt;
  return std::move(*fd);
}

template <class Handshake, class... Arguments>
watcher::link& watcher::open_link(file_descriptor fd, const Arguments&... arguments) {
  const connection_id id{links_opened_++};
  auto& l = links_.try_emplace(id, std::move(fd)).first->second;
  l.handshake.emplace<Handshake>(key_, job_, arguments...);
  feed(event::opened{id, l.io.other_side().text(), l.io.other_side().host()});
  return l;
}

bool watcher::wait_for(int fd, short events, clock::time_point until) {
  // An earlier wait may have consumed the wake event, so the request is checked again.
  while (!closing()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd both[] = {{wake_.fd(), POLLIN, 0}, {fd, events, 0}};
    ::poll(both, 2, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    if (both[0].revents != 0) wake_.clear();
    if (both[1].revents != 0) return true;
    if (both[0].revents != 0 || left <= 0) return false;
  }
  return false;
}

void watcher::wind_down() {
  const auto until = clock::now() + linger_max;
  std::vector<channel*> open;
  for (auto& [id, l] : links_) open.push_back(&l.io);
  std::set<channel*> writing{open.begin(), open.end()};
  while (!open.empty() && clock::now() < until) {
    std::vector<pollfd> ends;
    for (auto* c : open) ends.push_back({c->fd(), events_of(*c), 0});
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
  if (const auto* server = std::get_if<server_handshake>(&l.handshake)) {
    l.io.out().add_urgent(server->acceptance());
    auto keys = server->keys();
    l.io.out().seal_with(std::move(keys.from_node_0));
    l.io.in().expect_seal(std::move(keys.to_node_0));
  } else {
    auto keys = std::get<client_handshake>(l.handshake).keys();
    l.io.out().seal_with(std::move(keys.to_node_0));
    l.io.in().expect_seal(std::move(keys.from_node_0));
  }
  l.handshake = std::monostate{};
}

void watcher::carry_out(const action::refuse& a) {
  auto& l = links_.at(a.connection);
  l.io.out().add_urgent(to_frame(refuse{a.reason, a.for_now}));
  l.refused = true;
  if (l.io.flush()) l.io.end_writing();
}

void watcher::carry_out(const action::send& a) {
  const auto f = to_frame(a.content);
  // These follow the contributions of the node that they tell of; the others overtake them.
  const bool in_order =
      std::holds_alternative<goodbye>(a.content) || std::holds_alternative<departed>(a.content);
  for (const auto id : a.to) {
    auto& out = links_.at(id).io.out();
    in_order ? out.add(f) : out.add_urgent(f);
  }
}

void watcher::carry_out(const action::contribute& a) {
  for (const auto id : a.to)
    links_.at(id).io.out().add_bulk(a.deposit ? deposit::type : piece::type, a.round,
                                    a.node.value(), a.bytes);
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

void watcher::carry_out(const action::joined& a) {
  report([&] {
    for (const auto& m : a.members)
      members_.push_back({node_id{m.node}, m.host, m.card, m.description});
    joined_ = true;
  });
}

void watcher::carry_out(const action::lost& a) {
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
