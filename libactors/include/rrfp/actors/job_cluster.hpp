/// How the processes of a job become its nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/actors/end_cause.hpp>
#include <rrfp/actors/launch_environment.hpp>
#include <rrfp/actors/membership.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::actors {

/// Whether this process may open the files that a node of `nodes` needs, sockets above all. Error:
/// the limit, what is expected, and what to set.
status check_descriptors(std::uint32_t nodes);

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
/// Error: a wrong place, key or job, or check_descriptors(), which another try would not mend.
result<joined_job> join_job(const job::job& j, const launch_place& place, join_hooks hooks);

/// How long a node may wait for others that read many gigabytes: weights, or all of a checkpoint.
inline constexpr std::chrono::minutes reading_time_max{30};

/// What each node has to give, by rank; or why all of them end.
using agreement = std::variant<std::vector<std::string>, end_cause>;

/// Each node did its part, or could not, which `mine` says: all go on or none does. The end is of
/// bad input, the same on all nodes, and names the first that could not; or it is a loss meanwhile.
agreement agree(membership& members, const result<std::string>& mine,
                std::chrono::milliseconds limit = reading_time_max);

/// The same of a part that is set up, as an error.
status agree_to_start(membership& members, const status& mine);

}  // namespace rrfp::actors
