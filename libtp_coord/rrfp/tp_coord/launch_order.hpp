/// Checks that launches run in the order of their numbers, none omitted and none repeated, on every
/// rank of a stage. This order makes the collectives of different ranks match.
///
/// Pure. One object per rank, asked before each launch.
#pragma once

#include <optional>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/task.hpp>

namespace rrfp::tp_coord {

class launch_order {
 public:
  /// Accepts the next launch. Error: the launch is not the next one; it is not accepted.
  status accept(launch_seq seq, const task& t);

 private:
  launch_seq next_{0};
  std::optional<task> last_;
};

}  // namespace rrfp::tp_coord
