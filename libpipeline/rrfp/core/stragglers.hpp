/// Which ranks are stragglers: late, but alive.
///
/// The own time of a rank in a step is the time in its tasks and that in which a task was ready and
/// not yet begun, without the time in which it waited for other ranks of its stage. A step lasts at
/// least as long as the own time of the busiest rank, and each other rank waits for the difference
/// to its own. So the lateness of a rank is its own time minus that of the median rank. In a
/// balanced pipeline all own times are alike, however much the stages wait for each other: while
/// the pipeline fills and drains, for memory, or because random delays fall on all. (Lin et al.,
/// "Understanding stragglers in large model training using what-if analysis", OSDI 2025, ask in the
/// same way how long a step lasts if a worker was as quick as the others.)
///
/// A rank is a straggler if it was late by 10 % of the time of the last 20 steps, and by half as
/// much in at least 14 of these steps, so that an occasional stall does not count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp {

struct straggler {
  replica_id replica;
  stage_id stage;
  std::vector<rank_id> ranks;  ///< those of the stage that are late, in their order
  double late = 0;             ///< of the latest of them: share of the time of the steps
  double waiting = 0;          ///< share of all waiting that the other ranks do for it

  bool operator==(const straggler&) const = default;
};

/// Not thread-safe.
class straggler_watch {
 public:
  static constexpr std::size_t window = 20;          ///< steps
  static constexpr std::size_t late_steps_min = 14;  ///< of them
  static constexpr double late_min = 0.1;

  straggler_watch(std::uint32_t replicas, std::uint32_t stages, std::uint32_t ranks)
      : replicas_(replicas), stages_(stages), ranks_(ranks) {}

  /// A step took `time` nanoseconds from its first task to its last. `own`: the own time of each
  /// rank, at (replica * stages + stage) * ranks + rank.
  void add(std::vector<std::int64_t> own, std::int64_t time);
  /// Over the last `window` steps, the ranks that lost the most time first; empty until that many
  /// steps have been added.
  const std::vector<straggler>& found() const { return found_; }
  /// By how much each rank was later than the median rank, summed over all steps, in nanoseconds.
  const std::vector<std::int64_t>& late() const { return late_; }

 private:
  struct step {
    std::vector<std::int64_t> own;
    std::int64_t time = 0;
  };

  std::size_t all() const { return std::size_t{replicas_} * stages_ * ranks_; }
  void judge();

  const std::uint32_t replicas_;
  const std::uint32_t stages_;
  const std::uint32_t ranks_;
  std::deque<step> steps_;
  std::vector<straggler> found_;
  std::vector<std::int64_t> late_;
};

}  // namespace rrfp
