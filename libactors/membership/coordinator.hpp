/// Rank 0's end: the listener, the door, and one connection to every other node.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "handshake.hpp"
#include "watcher.hpp"

#include <poll.h>

namespace rrfp::actors::control {

class coordinator : public watcher {
 public:
  /// `listener`: one that listens already, or none.
  coordinator(membership_options options, secret key, std::string card, file_descriptor listener)
      : watcher(std::move(options), std::move(key), std::move(card)),
        listener_(std::move(listener)),
        seats_(options_.nodes) {}
  ~coordinator() override { end(); }

 private:
  enum class phase : std::uint8_t {
    greeting,     ///< the handshake is not through
    introducing,  ///< has its seat, owes its card
    joined,
    refused,  ///< is told why
    gone,
  };

  struct peer {
    peer(file_descriptor fd, const secret& key, const job_identity& job)
        : link(std::move(fd)), door(key, job) {}

    channel link;
    doorkeeper door;
    phase at = phase::greeting;
    clock::time_point since = clock::now();  ///< of the phases before joined
    clock::time_point beat_due;
    node_id node;
    std::string description;
    std::string card;
    std::string status;
    bool said_goodbye = false;
  };

  void watch() override;
  status open_listener();
  status listen_at_one_of(const std::vector<address>& addresses);
  void one_turn();
  void serve_requests();
  void look_after(clock::time_point now);
  void look_after(peer& p, clock::time_point now);
  bool everybody_knows_of_our_leave() const;
  void wait_for_sockets();

  void accept_all();
  void make_room();
  void receive(peer& p);
  void on_frame(peer& p, const frame& f);
  void on_greeting(peer& p, const frame& f);
  void on_introduction(peer& p, const frame& f);
  void on_message(peer& p, const frame& f);
  void on_piece(peer& p, const piece& received, bool passed_on);
  void on_given_up(peer& p, const std::string& message);
  void on_goodbye(peer& p);
  std::string seat_taken(node_id node) const;
  void start_if_complete();
  void tell_who_is_missing();

  /// The connection is of no use any more; what that means depends on the phase.
  void drop(peer& p, const std::string& why);
  void turn_away(peer& p, frame answer, const std::string& reason);
  void report_refusal(const peer& p, const std::string& reason);
  void lose(peer& p, const std::string& why);
  /// It is this node that the job has lost.
  void lose_self(const std::string& message);
  /// Whether no other node has answered for about as long as the one that is late.
  bool nobody_answers(clock::time_point now) const;
  /// Of the members that are there, this one left out.
  template <class Do>
  void for_each_member(const peer* but, Do what);

  file_descriptor listener_;
  address listening_;
  std::list<peer> peers_;
  std::vector<peer*> seats_;  ///< by rank; rank 0's stays empty
  bool started_ = false;
  bool lost_one_ = false;
  bool said_goodbye_ = false;
  short listens_ = POLLIN;
  int refusals_ = 0;
};

}  // namespace rrfp::actors::control
