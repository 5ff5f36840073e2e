#include "follower.hpp"

#include <cstring>

#include <fmt/format.h>

#include <poll.h>

namespace rrfp::actors::control {

namespace {

constexpr std::chrono::milliseconds retry_after{100};
/// Round trips before the job begins, so that the clock offset is good from the start.
constexpr std::size_t round_trips_first = 8;

}  // namespace

void follower::watch() {
  while (!closing() && try_to_join() == next_step::retry)
    wait_for(-1, 0, clock::now() + retry_after);
  // The connection has ended; a loss may still wait for its callback.
  while (!closing()) {
    deliver_loss();
    if (leaving()) report_left();
    wait_for(-1, 0, clock::now() + std::chrono::seconds{1});
  }
}

follower::next_step follower::try_to_join() {
  auto fd = connect();
  if (!fd) return refused_ ? next_step::stop : next_step::retry;
  channel link{std::move(*fd)};
  if (const auto then = do_handshake(link); !connected_) return then;
  link.send(introduce{options_.description, card_});
  serve_connection(link);
  if (closing()) wind_down({&link});
  return joined_ || refused_ ? next_step::stop : next_step::retry;
}

std::optional<file_descriptor> follower::connect() {
  const name_lookup lookup{options_.rendezvous_host, options_.rendezvous_port};
  while (!lookup.done() && !closing()) wait_for(lookup.fd(), POLLIN, clock::now() + turn());
  if (!lookup.done()) return std::nullopt;
  if (!lookup.answer()) {
    report_waiting("rendezvous " + lookup.answer().message());
    return std::nullopt;
  }
  std::string problem;
  for (const auto& to : *lookup.answer()) {
    if (options_.key_file.empty() && !to.is_loopback()) {
      refused_ = true;
      report_join_failed(
          fmt::format("joining at {} requires a key file: without one a job may use a "
                      "loopback address only",
                      to.text()));
      return std::nullopt;
    }
    if (auto fd = connect_to(to, problem)) return fd;
  }
  report_waiting(fmt::format("cannot connect to the rendezvous {}", problem));
  return std::nullopt;
}

std::optional<file_descriptor> follower::connect_to(const address& to, std::string& problem) {
  auto fd = begin_connect(to);
  problem = fd.ok() ? to.text() + ": connection timed out" : fd.message();
  if (!fd || !wait_for(fd->get(), POLLOUT, clock::now() + handshake_max)) return std::nullopt;
  if (const int failed = connect_error(fd->get()); failed != 0) {
    problem = fmt::format("{}: {}", to.text(), std::strerror(failed));
    return std::nullopt;
  }
  // While the port is free, TCP may connect the socket to itself.
  if (local_address(fd->get()).text() == to.text()) return std::nullopt;
  return std::move(*fd);
}

follower::next_step follower::do_handshake(channel& link) {
  connected_ = false;
  const auto random = fresh_nonce();
  if (!random) {
    refused_ = true;
    report_join_failed(random.message());
    return next_step::stop;
  }
  client_handshake me{key_, job_, options_.node, *random};
  link.out().add_urgent(me.greeting());
  const auto until = clock::now() + handshake_max;
  bool open = true;
  while (!closing() && clock::now() < until) {
    auto next = link.in().next();
    if (next.ok() && !next->has_value()) {
      // After the connection ends, only the frames already received are read, above.
      if (!open) break;
      open = link.flush().ok();
      wait_for(link.fd(), POLLIN, clock::now() + turn());
      open = link.receive().ok() && open;
      continue;
    }
    auto answer = next ? me.handle(**next) : result<std::optional<frame>>{next.failure()};
    if (!answer) {
      refused_ = true;
      report_join_failed(
          fmt::format("rendezvous {}: {}", link.other_side().text(), answer.message()),
          me.refused_for_now());
      return next_step::stop;
    }
    if (!answer->has_value()) {
      auto keys = me.keys();
      link.out().seal_with(std::move(keys.to_node_0));
      link.in().expect_seal(std::move(keys.from_node_0));
      connected_ = true;
      return next_step::retry;
    }
    link.out().add_urgent(**answer);
  }
  report_waiting(fmt::format("no handshake with node 0 at {}", link.other_side().text()));
  return next_step::retry;
}

void follower::serve_connection(channel& link) {
  roster_.clear();
  start_received_ = false;
  while (!closing() && connected_) one_turn(link);
}

void follower::one_turn(channel& link) {
  wait_for(link.fd(), static_cast<short>(link.out().empty() ? POLLIN : POLLIN | POLLOUT),
           clock::now() + turn());
  if (!receive(link)) return;
  const auto now = clock::now();
  link.discount_stall(own_delay(now));
  if (now - link.last_received() > options_.node_timeout) {
    give_up_on_node_0(
        fmt::format("it sent no heartbeat for {}", seconds_text(options_.node_timeout)));
    // If node 0 only stalled, it reads the notice when it resumes.
    if (const auto why = loss_message({}); !why.empty()) link.send(lost{0, why});
  }
  serve_requests(link);
  send_heartbeat_if_due(link, heartbeat_due_, now);
  if (const auto sent = link.flush(); !sent) give_up_on_node_0(sent.message());
  deliver_loss();
}

bool follower::receive(channel& link) {
  const auto received = link.receive();
  while (connected_) {
    auto next = link.in().next();
    if (!next) {
      give_up_on_node_0(next.message());
      break;
    }
    if (!next->has_value()) break;
    if (!on_frame(link, **next)) {
      give_up_on_node_0("it sent a malformed message");
      break;
    }
  }
  if (!received) give_up_on_node_0(received.message());
  return connected_;
}

void follower::give_up_on_node_0(const std::string& why) {
  if (!std::exchange(connected_, false)) return;
  if (leaving()) return report_left();
  // The job has begun for the others: report a loss instead of joining again.
  if (start_received_) become_member();
  if (!joined_) {
    report_gone_early(name_of(node_id{0}, {}), why);
    return report_waiting(fmt::format("the connection to node 0 ended: {}", why));
  }
  if (!node_0_left_)
    report_lost(node_id{0},
                fmt::format("{} was lost: {}",
                            name_of(node_id{0}, node_0_description_, node_0_status_), why));
}

void follower::serve_requests(channel& link) {
  while (auto mine = take_contribution())
    link.out().add_bulk(mine->type, mine->round, options_.node.value(), std::move(mine->bytes));
  if (leaving() && !std::exchange(said_goodbye_, true)) {
    link.out().add(to_frame(goodbye{}));
    if (node_0_left_) report_left();
  }
}

bool follower::on_frame(channel& link, const frame& f) {
  switch (f.type) {
    case frame_type::member:
    case frame_type::start: return on_roster(link, f);
    case frame_type::ping:
    case frame_type::pong: return on_heartbeat(link, f);
    case frame_type::give_up:
    case frame_type::lost:
    case frame_type::departed:
    case frame_type::goodbye: return on_ending(link, f);
    case frame_type::piece: {
      const auto received = decode<piece>(f.payload);
      // Node 0 may begin an exchange while this node still measures its clock.
      return received && start_received_ && add_piece(*received).ok();
    }
    case frame_type::hello:
    case frame_type::challenge:
    case frame_type::claim:
    case frame_type::accept:
    case frame_type::refuse:
    case frame_type::introduce:
    case frame_type::deposit: return false;
  }
  return false;
}

bool follower::on_roster(const channel& link, const frame& f) {
  if (start_received_) return false;
  if (f.type == frame_type::member) {
    auto received = decode<roster_entry>(f.payload);
    if (!received || received->node != roster_.size() || received->node >= options_.nodes)
      return false;
    roster_.push_back({node_id{received->node},
                       received->node == 0 ? link.other_side().host() : received->host,
                       std::move(received->card), printable(received->description)});
    return true;
  }
  if (!decode<start>(f.payload) || roster_.size() != options_.nodes) return false;
  start_received_ = true;
  node_0_description_ = roster_.front().description;
  node_0_status_.clear();  // until now it named the missing nodes
  join_if_complete();
  return true;
}

void follower::join_if_complete() {
  if (start_received_ && filter_.count() >= round_trips_first) become_member();
}

void follower::become_member() {
  if (std::exchange(joined_, true)) return;
  report_offset(filter_.offset());
  report_joined(roster_);
}

bool follower::on_heartbeat(channel& link, const frame& f) {
  const auto now = clock::now();
  if (f.type == frame_type::ping) {
    const auto received = decode<ping>(f.payload);
    if (!received) return false;
    node_0_status_ = printable(received->status);
    if (!start_received_ && !node_0_status_.empty()) report_waiting("node 0 is " + node_0_status_);
    link.send(pong{received->sent_ns, ns(now)});
    return true;
  }
  const auto received = decode<pong>(f.payload);
  if (!received) return false;
  filter_.add(received->ping_sent_ns, received->here_ns, ns(now));
  report_offset(filter_.offset());
  if (filter_.count() < round_trips_first) heartbeat_due_ = now;
  join_if_complete();
  return true;
}

bool follower::on_ending(channel& link, const frame& f) {
  if (f.type == frame_type::give_up) {
    const auto received = decode<give_up>(f.payload);
    if (!received || start_received_) return false;
    refused_ = true;
    connected_ = false;
    report_join_failed(printable(received->reason), true);
    return true;
  }
  if (f.type == frame_type::lost) {
    auto received = decode<lost>(f.payload);
    if (!received || received->node >= options_.nodes) return false;
    report_lost(node_id{received->node}, printable(received->why));
    return true;
  }
  if (f.type == frame_type::departed) {
    const auto received = decode<departed>(f.payload);
    if (!received || received->node >= options_.nodes) return false;
    report_departed(node_id{received->node});
    return true;
  }
  if (!decode<goodbye>(f.payload)) return false;
  node_0_left_ = true;
  report_departed(node_id{0});
  if (leaving()) report_left();
  // Node 0 waits for this goodbye before it closes.
  if (!std::exchange(said_goodbye_, true)) link.out().add(to_frame(goodbye{}));
  return true;
}

}  // namespace rrfp::actors::control
