#include "network.hpp"

#include <algorithm>

#include <rrfp/core/membership_common.hpp>

#include "traffic.hpp"

namespace rrfp::cluster {

// ---- ways

ways::ways(const world& w)
    : world_(w),
      nodes_(w.c.nodes),
      ways_(std::size_t{nodes_} * nodes_),
      dark_(nodes_),
      random_(w.c.seed, 2) {}

void ways::cut(std::uint32_t from, std::uint32_t to, nanoseconds until) {
  at(from, to).cut_until = std::max(at(from, to).cut_until, until);
}

void ways::slow(std::uint32_t from, std::uint32_t to, nanoseconds until) {
  at(from, to).slow_until = std::max(at(from, to).slow_until, until);
}

nanoseconds ways::opens(std::uint32_t from, std::uint32_t to) const {
  return std::max(world_.now(), at(from, to).cut_until);
}

nanoseconds ways::draw_delay(std::uint32_t from, std::uint32_t to) {
  if (world_.now() < at(from, to).slow_until) return random_.between(5 * ms, 40 * ms);
  const auto draw = random_.next();
  const auto quick = 10 * us + static_cast<nanoseconds>(draw % 65536) * us / 1024;
  return (draw >> 32) % 64 == 0 ? quick + 2 * ms : quick;
}

// ---- control connections

control_connection::control_connection(world& w, ways& through, std::uint32_t from,
                                       std::uint32_t to)
    : world_(w), ways_(through) {
  ends_[0].node = from;
  ends_[1].node = to;
}

nanoseconds control_connection::arrival(int from) {
  const auto a = ends_[from].node;
  const auto b = ends_[1 - from].node;
  auto& last = directions_[from].last;
  last = std::max(last + 1, ways_.opens(a, b) + ways_.draw_delay(a, b));
  return last - world_.now();
}

void control_connection::notify(int side) {
  if (ends_[side].on_arrival) ends_[side].on_arrival();
}

void control_connection::travel(int to, std::shared_ptr<const frame> f) {
  world_.call(arrival(1 - to), [self = shared_from_this(), to, f = std::move(f)] {
    auto& end = self->ends_[to];
    if (self->was_reset_ || end.is_closed) return;
    end.inbox.push_back(f);
    self->notify(to);
  });
}

void control_connection::send(int side, frame f, bool urgent) {
  auto& d = directions_[side];
  if (was_reset_ || ends_[side].is_closed) return;
  if (world_.counted != nullptr)
    world_.counted->count(purpose_of(f), ends_[side].node, ends_[1 - side].node, bytes_of(f));
  auto shared = std::make_shared<const frame>(std::move(f));
  if (urgent) return travel(1 - side, std::move(shared));
  d.bulk.push_back(std::move(shared));
  if (!std::exchange(d.pumps, true)) pump(side);
}

void control_connection::pump(int from) {
  auto& d = directions_[from];
  if (d.bulk.empty()) {
    d.pumps = false;
    if (d.closes) finish(from);
    return;
  }
  travel(1 - from, d.bulk.front());
  d.bulk.pop_front();
  world_.call(20 * us, [self = shared_from_this(), from] { self->pump(from); });
}

void control_connection::finish(int from) {
  if (was_reset_) return;
  world_.call(arrival(from), [self = shared_from_this(), to = 1 - from] {
    self->ends_[to].has_ended = true;
    self->notify(to);
  });
}

void control_connection::close(int side) {
  auto& end = ends_[side];
  if (std::exchange(end.is_closed, true)) return;
  end.on_arrival = nullptr;
  end.inbox.clear();
  auto& d = directions_[side];
  d.closes = true;
  if (!d.pumps) finish(side);
}

void control_connection::reset() {
  if (std::exchange(was_reset_, true)) return;
  for (int side = 0; side < 2; ++side) {
    ends_[side].has_ended = true;
    notify(side);
  }
}

// ---- rendezvous

void rendezvous::listen(std::function<void()> on_connection) {
  on_connection_ = std::move(on_connection);
  if (!backlog_.empty()) on_connection_();
}

void rendezvous::stop_listening() {
  on_connection_ = nullptr;
  if (stays_open_) return;
  for (const auto& c : backlog_) c->reset();
  backlog_.clear();
}

std::shared_ptr<control_connection> rendezvous::accept() {
  if (backlog_.empty()) return nullptr;
  auto first = std::move(backlog_.front());
  backlog_.pop_front();
  return first;
}

void rendezvous::connect(std::uint32_t from, connected done) {
  const auto back = std::max(ways_.opens(from, node_), ways_.opens(node_, from));
  if (!is_reached(from, membership_core::handshake_max)) {
    world_.call(membership_core::handshake_max, [done] { done(nullptr, false); });
    return;
  }
  world_.call(back - world_.now() + ways_.draw_delay(from, node_), [this, from, done] {
    if (!on_connection_ && !stays_open_) return done(nullptr, !ways_.is_dark(node_));
    auto made = std::make_shared<control_connection>(world_, ways_, from, node_);
    backlog_.push_back(made);
    if (on_connection_) on_connection_();
    done(made, false);
  });
}

bool rendezvous::is_reached(std::uint32_t from, nanoseconds limit) const {
  const auto back = std::max(ways_.opens(from, node_), ways_.opens(node_, from));
  return back - world_.now() <= limit;
}

}  // namespace rrfp::cluster
