/// The order that every rank of a stage obeys: launches run in the order of their numbers, none is
/// left out, none runs twice. Collectives of different ranks match because of it.
///
/// Pure. One a rank; asked before each launch.
#pragma once

#include <optional>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>
#include <rrfp/schedule/task.hpp>

namespace rrfp::tp_coord {

class launch_order {
 public:
  /// Launches count from `first` on.
  explicit launch_order(launch_seq first = launch_seq{0}) : next_(first) {}

  /// Error: the launch is not the next one. It is not taken then.
  status take(launch_seq seq, const task& what);

  launch_seq next() const { return next_; }

 private:
  launch_seq next_;
  std::optional<task> last_;
};

}  // namespace rrfp::tp_coord
