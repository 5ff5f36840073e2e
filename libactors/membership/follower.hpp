/// A node's end other than rank 0's: one connection, tried again until the job has begun.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "clock_filter.hpp"
#include "handshake.hpp"
#include "watcher.hpp"

namespace rrfp::actors::control {

class follower : public watcher {
 public:
  using watcher::watcher;
  ~follower() override { end(); }

 private:
  /// What became of a try to join.
  enum class after : std::uint8_t {
    again,  ///< not yet: rank 0 is not up, or went away before the job began
    never,  ///< refused; or the job has begun and is over for this node
  };

  void watch() override;
  after try_to_join();
  std::optional<file_descriptor> connect();
  std::optional<file_descriptor> connect_to(const address& to, std::string& problem);
  after greet(channel& link);
  void attend(channel& link);
  void one_turn(channel& link);
  bool receive(channel& link);
  void serve_requests(channel& link);
  bool on_frame(channel& link, const frame& f);
  bool on_roster(const channel& link, const frame& f);
  bool on_heartbeat(channel& link, const frame& f);
  bool on_ending(channel& link, const frame& f);
  void join_if_complete();
  void become_member();
  /// Rank 0 does not answer any more, or not sense.
  void give_up_on_rank_0(const std::string& why);

  std::vector<member> roster_;
  bool start_came_ = false;
  bool joined_ = false;
  bool refused_ = false;
  bool connected_ = false;
  bool rank_0_left_ = false;
  bool said_goodbye_ = false;
  std::string rank_0_description_;
  std::string rank_0_status_;
  clock::time_point beat_due_;
  clock_filter filter_;
};

}  // namespace rrfp::actors::control
