/// A listening socket that a process keeps for its whole life, so that others can tell what has
/// become of it, and can join it if it leads.
///
/// While it does not lead, a thread accepts and closes each connection. So a connection that is
/// refused means that the process has ended; one on which nothing happens, that it is stopped; and
/// one that ends, or carries an answer, that it lives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include <rrfp/base/result.hpp>

#include "sockets.hpp"

namespace rrfp::actors::control {

class life_line {
 public:
  /// On a free port of the host of `here`.
  static result<std::unique_ptr<life_line>> open(address here);
  ~life_line();
  life_line(const life_line&) = delete;
  life_line& operator=(const life_line&) = delete;

  std::uint16_t port() const { return local_address(listener_.get()).port(); }
  /// The listener, for a leader, until rest(): whoever has it answers all connections.
  file_descriptor serve();
  void rest();

 private:
  explicit life_line(file_descriptor listener);
  void close_connections();

  const file_descriptor listener_;
  const wake_event wake_;
  std::mutex mutex_;
  bool is_served_ = false;
  bool ends_ = false;
  std::thread thread_;
};

/// Blocks for twice `silent_max` at most, or until `stop`. Whether the process with a life line
/// there has ended, or does not answer for so long though its machine does.
bool is_gone(const std::string& host, std::uint16_t port, std::chrono::milliseconds silent_max,
             const std::stop_token& stop);

}  // namespace rrfp::actors::control
