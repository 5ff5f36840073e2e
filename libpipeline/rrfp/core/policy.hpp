/// A policy ranks the ready tasks of one stage. It is only a hint: the arbiter takes the
/// best-ranked task that is ready and fits into memory, and never waits for one that is not ready.
///
/// A policy sorts tasks into lanes. The order within a lane is fixed (`rank`); the order of the
/// lanes may depend on what has run (`order`), which is how BF alternates between backward and
/// forward. A schedule used as a hint is one lane ranked by position. A policy object serves one
/// stage and one thread; rank(), lane_of() and backward_of() must not depend on what has run.
///
/// The layers that read and plan jobs receive a policy_registry. The policies themselves, and the
/// code that derives policies from others, belong to higher layers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/task.hpp>

namespace rrfp {

inline constexpr std::uint32_t lanes_max = 4;

/// Lanes in the order in which they are tried. Lanes left out follow in numerical order.
struct lane_order {
  std::array<std::uint8_t, lanes_max> lane{};
  std::uint32_t count = 0;
};

/// What the order of the lanes may depend on, besides what the policy has seen run.
struct stage_view {
  /// An F is ready, and memory stops every F that is.
  bool forward_blocked = false;
};

inline constexpr std::uint32_t weight_pieces_max = 64;

class policy {
 public:
  policy() = default;
  policy(const policy&) = delete;
  policy& operator=(const policy&) = delete;
  virtual ~policy() = default;

  /// The name that selects the policy in a job.
  virtual std::string_view name() const = 0;
  /// BW if backward is fused for this microbatch and chunk, B if W is split off.
  virtual task_kind backward_of(microbatch_id mb, chunk_id chunk) const = 0;
  /// Number of lanes, 1..lanes_max.
  virtual std::uint32_t lanes() const = 0;
  virtual std::uint32_t lane_of(const task& t) const = 0;
  /// The smallest rank runs first; ties go to the smaller microbatch, then to the smaller chunk.
  virtual std::uint64_t rank(const task& t) const = 0;
  /// The current order of the lanes.
  virtual lane_order order(const stage_view& now) const = 0;
  /// Into how many launches each W should be divided if a launch costs next to nothing: 1 to
  /// weight_pieces_max.
  virtual std::uint32_t weight_pieces() const { return 1; }
  /// A step begins; the policy forgets what has run.
  virtual void reset() {}
  /// The arbiter has launched this task.
  virtual void launched(const task&) {}
  /// No task runs and none could be launched: the stage waits.
  virtual void waited() {}
};

/// The complete task order of one stage for one step, as a fixed schedule defines it.
using sequence = std::vector<task>;

/// Wraps a fixed schedule as a policy: one lane, ranked by position. The sequence must hold every F
/// once, and for each F either its BW or its B and W (check_sequences() verifies this).
std::unique_ptr<policy> make_sequence_policy(std::string_view name, sequence order);

/// All tasks of a stage in a step as the policy splits its backwards: F and its BW or B and W,
/// chunk after chunk.
sequence tasks_of(const policy& hint, const pipeline_shape& shape);

/// The description of a policy for help texts and checks.
struct policy_info {
  std::string_view name;
  std::string_view summary;
  /// A fixed schedule (one sequence per stage), usable as a hint. Otherwise the policy works in
  /// rounds over the ready tasks.
  bool fixed = false;
};

/// A policy for one shape; makes one policy object for each stage. Immutable and thread-safe; each
/// object that it makes belongs to one thread.
class policy_set {
 public:
  using maker = std::function<std::unique_ptr<policy>(stage_id)>;

  /// `make` is thread-safe.
  policy_set(std::string_view name, maker make) : name_(name), make_(std::move(make)) {}
  /// A fixed schedule of `sequences`, one per stage, which must pass check_sequences().
  policy_set(std::string_view name, std::vector<sequence> sequences)
      : name_(name), sequences_(std::move(sequences)) {}

  std::string_view name() const { return name_; }
  std::unique_ptr<policy> make(stage_id stage) const;
  /// The sequences of a fixed schedule, one per stage; null for policies that work in rounds.
  const std::vector<sequence>* sequences() const { return make_ ? nullptr : &sequences_; }

 private:
  const std::string name_;
  const maker make_;
  const std::vector<sequence> sequences_;
};

/// Thread-safe.
class policy_registry {
 public:
  virtual ~policy_registry() = default;
  /// All policies except `table:FILE.csv` and `lib:FILE.so`, in the order of the documentation.
  virtual const std::vector<policy_info>& known() const = 0;
  /// `name` is one of known(), `table:FILE.csv` or `lib:FILE.so`. Errors: an unknown name (with the
  /// list of known names), a shape for which the schedule is not defined, an unreadable or
  /// malformed table (with file and line), a library that cannot be loaded or whose policies break
  /// a rule.
  virtual result<std::shared_ptr<const policy_set>> make(std::string_view name,
                                                         const pipeline_shape& shape) const = 0;
};

}  // namespace rrfp
