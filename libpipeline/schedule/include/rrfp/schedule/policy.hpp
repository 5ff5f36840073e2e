/// What ranks the ready work of one stage. A policy binds nobody: the arbiter takes the best-ranked
/// task that is ready and fits, and never waits for one that is not.
///
/// A policy sorts tasks into lanes. Inside a lane the order is fixed (`rank`); among lanes it may
/// change with what has run (`order`), which is how BF alternates between backward and forward.
/// A schedule used as a hint is one lane ranked by position. A policy object serves one stage and
/// one thread; rank(), lane_of() and backward_of() must not depend on what has run.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <rrfp/schedule/task.hpp>

namespace rrfp {

inline constexpr std::uint32_t lanes_max = 4;

/// Lanes to try, first to last. Lanes left out are tried after those named, in numerical order.
struct lane_order {
  std::array<std::uint8_t, lanes_max> lane{};
  std::uint32_t count = 0;
};

class policy {
 public:
  policy() = default;
  policy(const policy&) = delete;
  policy& operator=(const policy&) = delete;
  virtual ~policy() = default;

  /// The name under which a job finds it.
  virtual std::string_view name() const = 0;
  /// BW where backward is fused for this microbatch and chunk, B where W is split off.
  virtual task_kind backward_of(microbatch_id mb, chunk_id chunk) const = 0;
  /// How many lanes there are, 1..lanes_max.
  virtual std::uint32_t lanes() const = 0;
  virtual std::uint32_t lane_of(const task& t) const = 0;
  /// Smaller runs first; ties go to the smaller microbatch, then the smaller chunk.
  virtual std::uint64_t rank(const task& t) const = 0;
  /// The lanes in today's order.
  virtual lane_order order() const = 0;
  /// A step begins: forget what has run.
  virtual void reset() {}
  /// The arbiter has launched this task.
  virtual void launched(const task&) {}
  /// Nothing could be launched and nothing runs: the stage waits.
  virtual void waited() {}
};

/// The whole order of one stage's step, as fixed schedules give it.
using sequence = std::vector<task>;

/// A fixed schedule as a policy: one lane, ranked by position. Every F must be in the sequence
/// once, and for each of them either its BW, or its B and W (check_sequences() proves that).
std::unique_ptr<policy> make_sequence_policy(std::string_view name, sequence order);

}  // namespace rrfp
