/// How the processes of a job become its nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include <rrfp/actors/launch_environment.hpp>
#include <rrfp/actors/membership.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::actors {

struct join_hooks {
  /// See membership_options.
  int listen_fd = -1;
  std::string version;
  /// What this node does, for messages.
  std::string description;
  std::stop_token stop;
  std::function<void(std::string)> on_refused;
  std::function<void(std::string)> on_gone_early;
};

struct joined_job {
  std::unique_ptr<membership> members;  ///< null if the others did not come
  /// A number that all nodes know and no other job has.
  std::uint64_t token = 0;
  /// Why there is no token: others did not come in time, or one was lost before anything began.
  /// Empty otherwise.
  std::string lost;
};

/// Blocks until all nodes are here and have the same job, but for how each reaches the others.
/// Error: a wrong place, key or job, which another try would not mend.
result<joined_job> join_job(const job::job& j, const launch_place& place, join_hooks hooks);

/// After each node has set up its part, or could not, which `mine` says: all go on or none does.
/// Error: the same on all nodes, naming the first that could not; or a node was lost meanwhile.
status agree_to_start(membership& members, const status& mine);

}  // namespace rrfp::actors
