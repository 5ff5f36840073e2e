/// The membership of every node but node 0: one connection to node 0, retried until the job begins.
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
  /// What follows an attempt to join.
  enum class next_step : std::uint8_t {
    retry,  ///< node 0 is not up, or disconnected before the job began
    stop,   ///< refused, or the job began and has ended for this node
  };

  void watch() override;
  next_step try_to_join();
  std::optional<file_descriptor> connect();
  std::optional<file_descriptor> connect_to(const address& to, std::string& problem);
  next_step do_handshake(channel& link);
  void serve_connection(channel& link);
  void one_turn(channel& link);
  bool receive(channel& link);
  void serve_requests(channel& link);
  bool on_frame(channel& link, const frame& f);
  bool on_roster(const channel& link, const frame& f);
  bool on_heartbeat(channel& link, const frame& f);
  bool on_ending(channel& link, const frame& f);
  void join_if_complete();
  void become_member();
  /// The connection to node 0 failed, timed out or carried invalid data.
  void give_up_on_node_0(const std::string& why);

  std::vector<member> roster_;
  bool start_received_ = false;
  bool joined_ = false;
  bool refused_ = false;
  bool connected_ = false;
  bool node_0_left_ = false;
  bool said_goodbye_ = false;
  std::string node_0_description_;
  std::string node_0_status_;
  clock::time_point heartbeat_due_;
  clock_filter filter_;
};

}  // namespace rrfp::actors::control
