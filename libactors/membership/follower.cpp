#include "follower.hpp"

#include <cstring>

#include <fmt/format.h>

#include <poll.h>

namespace rrfp::actors::control {

namespace {

constexpr std::chrono::milliseconds retry_after{100};
constexpr std::chrono::seconds handshake_max{5};
/// Round trips before the job begins, so that the clock offset is good from the start.
constexpr std::size_t round_trips_first = 8;

}  // namespace

void follower::watch() {
  while (!closing() && try_to_join() == after::again) wait_for(-1, 0, clock::now() + retry_after);
  // The connection is over; a loss may still find its callback.
  while (!closing()) {
    deliver_loss();
    if (leaving()) tell_left();
    wait_for(-1, 0, clock::now() + std::chrono::seconds{1});
  }
}

follower::after follower::try_to_join() {
  auto fd = connect();
  if (!fd) return refused_ ? after::never : after::again;
  channel link{std::move(*fd)};
  if (const auto then = greet(link); !connected_) return then;
  link.say(introduce{options_.description, card_});
  attend(link);
  if (closing()) wind_down({&link});
  return joined_ || refused_ ? after::never : after::again;
}

std::optional<file_descriptor> follower::connect() {
  const name_lookup lookup{options_.rendezvous_host, options_.rendezvous_port};
  while (!lookup.done() && !closing()) wait_for(lookup.fd(), POLLIN, clock::now() + turn());
  if (!lookup.done()) return std::nullopt;
  if (!lookup.answer()) {
    tell_waiting("rendezvous " + lookup.answer().message());
    return std::nullopt;
  }
  std::string problem;
  for (const auto& to : *lookup.answer()) {
    if (options_.key_file.empty() && !to.is_loopback()) {
      refused_ = true;
      tell_join_failed(
          fmt::format("joining at {} takes a key file: without one a job may meet on a "
                      "loopback address only",
                      to.text()));
      return std::nullopt;
    }
    if (auto fd = connect_to(to, problem)) return fd;
  }
  tell_waiting(fmt::format("nobody listens at the rendezvous {}", problem));
  return std::nullopt;
}

std::optional<file_descriptor> follower::connect_to(const address& to, std::string& problem) {
  auto fd = begin_connect(to);
  problem = fd.ok() ? to.text() + ": no answer" : fd.message();
  if (!fd || !wait_for(fd->get(), POLLOUT, clock::now() + handshake_max)) return std::nullopt;
  if (const int failed = connect_error(fd->get()); failed != 0) {
    problem = fmt::format("{}: {}", to.text(), std::strerror(failed));
    return std::nullopt;
  }
  // A port that is still free may be given to the very socket that connects to it.
  if (own_of(fd->get()).text() == to.text()) return std::nullopt;
  return std::move(*fd);
}

follower::after follower::greet(channel& link) {
  connected_ = false;
  const auto random = fresh_nonce();
  if (!random) {
    refused_ = true;
    tell_join_failed(random.message());
    return after::never;
  }
  applicant me{key_, job_, options_.rank, *random};
  link.out().add_urgent(me.greeting());
  const auto until = clock::now() + handshake_max;
  bool open = true;
  while (!closing() && clock::now() < until) {
    auto next = link.in().next();
    if (next.ok() && !next->has_value()) {
      // Written and heard as long as the connection stands; its last frames are still read above.
      if (!open) break;
      open = link.flush().ok();
      wait_for(link.fd(), POLLIN, clock::now() + turn());
      open = link.receive().ok() && open;
      continue;
    }
    auto answer = next ? me.on(**next) : result<std::optional<frame>>{next.failure()};
    if (!answer) {
      refused_ = true;
      tell_join_failed(
          fmt::format("rendezvous {}: {}", link.other_side().text(), answer.message()),
          me.refused_for_now());
      return after::never;
    }
    if (!answer->has_value()) {
      auto keys = me.keys();
      link.out().seal_with(std::move(keys.to_rank_0));
      link.in().expect_seal(std::move(keys.from_rank_0));
      connected_ = true;
      return after::again;
    }
    link.out().add_urgent(**answer);
  }
  tell_waiting(fmt::format("no handshake with rank 0 at {}", link.other_side().text()));
  return after::again;
}

void follower::attend(channel& link) {
  roster_.clear();
  start_came_ = false;
  while (!closing() && connected_) one_turn(link);
}

void follower::one_turn(channel& link) {
  wait_for(link.fd(), static_cast<short>(link.out().empty() ? POLLIN : POLLIN | POLLOUT),
           clock::now() + turn());
  if (!receive(link)) return;
  const auto now = clock::now();
  link.forgive(late(now));
  if (now - link.last_heard() > options_.node_timeout) {
    give_up_on_rank_0(fmt::format("no answer for {}", seconds_text(options_.node_timeout)));
    // If it only stood still, it shall hear of it when it wakes up.
    if (const auto why = loss_message({}); !why.empty()) link.say(lost{0, why});
  }
  serve_requests(link);
  beat(link, beat_due_, now);
  if (const auto sent = link.flush(); !sent) give_up_on_rank_0(sent.message());
  deliver_loss();
}

bool follower::receive(channel& link) {
  const auto received = link.receive();
  while (connected_) {
    auto next = link.in().next();
    if (!next) {
      give_up_on_rank_0(next.message());
      break;
    }
    if (!next->has_value()) break;
    if (!on_frame(link, **next)) {
      give_up_on_rank_0("it sent a malformed message");
      break;
    }
  }
  if (!received) give_up_on_rank_0(received.message());
  return connected_;
}

void follower::give_up_on_rank_0(const std::string& why) {
  if (!std::exchange(connected_, false)) return;
  if (leaving()) return tell_left();
  // The job had begun for the others: its end is to be heard as a loss, not tried again.
  if (start_came_) become_member();
  if (!joined_) {
    tell_gone_early(name_of(node_id{0}, {}), why);
    return tell_waiting(fmt::format("the connection to rank 0 ended: {}", why));
  }
  if (!rank_0_left_)
    tell_lost(node_id{0},
              fmt::format("{} was lost: {}",
                          name_of(node_id{0}, rank_0_description_, rank_0_status_), why));
}

void follower::serve_requests(channel& link) {
  while (auto gift = take_gift())
    link.out().add_bulk(gift->as, gift->round, options_.rank.value(), std::move(gift->bytes));
  if (leaving() && !std::exchange(said_goodbye_, true)) {
    link.out().add(to_frame(goodbye{}));
    if (rank_0_left_) tell_left();
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
      const auto came = decode<piece>(f.payload);
      // Rank 0 may begin an exchange while this node still measures its clock.
      return came && start_came_ && add_piece(*came).ok();
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
  if (start_came_) return false;
  if (f.type == frame_type::member) {
    auto came = decode<roster_entry>(f.payload);
    if (!came || came->rank != roster_.size() || came->rank >= options_.nodes) return false;
    roster_.push_back({node_id{came->rank}, came->rank == 0 ? link.other_side().host() : came->host,
                       std::move(came->card), printable(came->description)});
    return true;
  }
  if (!decode<start>(f.payload) || roster_.size() != options_.nodes) return false;
  start_came_ = true;
  rank_0_description_ = roster_.front().description;
  rank_0_status_.clear();  // so far it told who was missing
  join_if_complete();
  return true;
}

void follower::join_if_complete() {
  if (start_came_ && filter_.count() >= round_trips_first) become_member();
}

void follower::become_member() {
  if (std::exchange(joined_, true)) return;
  tell_offset(filter_.offset());
  tell_joined(roster_);
}

bool follower::on_heartbeat(channel& link, const frame& f) {
  const auto now = clock::now();
  if (f.type == frame_type::ping) {
    const auto came = decode<ping>(f.payload);
    if (!came) return false;
    rank_0_status_ = printable(came->status);
    if (!start_came_ && !rank_0_status_.empty())
      tell_waiting("rank 0 waits for others: " + rank_0_status_);
    link.say(pong{came->sent_ns, ns(now)});
    return true;
  }
  const auto came = decode<pong>(f.payload);
  if (!came) return false;
  filter_.add(came->ping_sent_ns, came->here_ns, ns(now));
  tell_offset(filter_.offset());
  if (filter_.count() < round_trips_first) beat_due_ = now;
  join_if_complete();
  return true;
}

bool follower::on_ending(channel& link, const frame& f) {
  if (f.type == frame_type::give_up) {
    const auto came = decode<give_up>(f.payload);
    if (!came || start_came_) return false;
    refused_ = true;
    connected_ = false;
    tell_join_failed(printable(came->reason), true);
    return true;
  }
  if (f.type == frame_type::lost) {
    auto came = decode<lost>(f.payload);
    if (!came || came->rank >= options_.nodes) return false;
    tell_lost(node_id{came->rank}, printable(came->why));
    return true;
  }
  if (f.type == frame_type::departed) {
    const auto came = decode<departed>(f.payload);
    if (!came || came->rank >= options_.nodes) return false;
    tell_departed(node_id{came->rank});
    return true;
  }
  if (!decode<goodbye>(f.payload)) return false;
  rank_0_left_ = true;
  tell_departed(node_id{0});
  if (leaving()) tell_left();
  // Rank 0 waits for this to close its end.
  if (!std::exchange(said_goodbye_, true)) link.out().add(to_frame(goodbye{}));
  return true;
}

}  // namespace rrfp::actors::control
