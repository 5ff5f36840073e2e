/// The key-value store of torchrun's agent, through which the nodes find the port of node 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <rrfp/actors/launch_environment.hpp>

namespace rrfp::actors {

/// One rendezvous. The nodes of a job must make these objects in the same order.
class agent_store {
 public:
  /// `place.port` is the agent's. Error: node_lost if the agent does not answer within `limit`.
  static result<agent_store> connect(const launch_place& place, std::chrono::milliseconds limit);

  /// For node 0.
  status publish(std::uint16_t port);
  /// For the other nodes: waits until node 0 has published its port. Error: node_lost after the
  /// limit; interrupted.
  result<std::uint16_t> find(const std::stop_token& stop);

 private:
  agent_store(std::string name, c10::intrusive_ptr<c10d::TCPStore> store,
              std::chrono::steady_clock::time_point deadline);

  std::string name_;  ///< in messages
  std::string key_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace rrfp::actors
