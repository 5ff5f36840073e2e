/// Placement of the model: p stages with v chunks each form p*v virtual stages along the model.
///
///   linear        v = 1       virtual stage s is stage s
///   interleaved   any v       chunk c of stage s is virtual stage c*p + s
///   v             v = 2       chunk 0 of stage s is s, chunk 1 is 2p-1-s (the model turns back)
///
/// Also the order in which the first virtual stage admits (numbers) the microbatches of a step.
/// Gradients are a sum, so any order gives the same result. With uneven microbatches the order
/// decides how well the pipeline fills and drains.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <rrfp/base/check.hpp>
#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/task.hpp>

namespace rrfp {

enum class placement : std::uint8_t { linear, interleaved, v };

std::string_view name(placement p);
std::optional<placement> placement_of(std::string_view name);

/// One chunk of one stage.
struct chunk_position {
  stage_id stage;
  chunk_id chunk;

  auto operator<=>(const chunk_position&) const = default;
};

/// One rank of one stage of one replica.
struct rank_address {
  stage_id stage;
  rank_id rank;
  replica_id replica{};

  auto operator<=>(const rank_address&) const = default;
};

/// A task and where it runs.
struct placed_task {
  virtual_stage_id vs;
  stage_id stage;
  task what;

  bool operator==(const placed_task&) const = default;
};

/// The dimensions of a pipeline.
struct pipeline_shape {
  std::uint32_t stages = 1;
  std::uint32_t chunks = 1;
  std::uint32_t microbatches = 1;
  placement layout = placement::linear;

  bool operator==(const pipeline_shape&) const = default;

  std::uint32_t virtual_stages() const { return stages * chunks; }
  virtual_stage_id virtual_stage(stage_id stage, chunk_id chunk) const;
  chunk_position at(virtual_stage_id vs) const;
  /// The dense index of a microbatch on a chunk: chunk * microbatches + microbatch.
  std::size_t index(microbatch_id mb, chunk_id chunk) const {
    RRFP_CHECK(mb.value() < microbatches && chunk.value() < chunks,
               "the task must belong to the step");
    return std::size_t{chunk.value()} * microbatches + mb.value();
  }
  /// The dense index of a task of a stage, below task_indices(); B and BW share one.
  std::size_t index(const task& t) const {
    return std::size_t{task_row(t.kind)} * chunks * microbatches + index(t.mb, t.chunk);
  }
  std::size_t task_indices() const { return std::size_t{3} * chunks * microbatches; }
  bool is_first(virtual_stage_id vs) const { return vs.value() == 0; }
  bool is_last(virtual_stage_id vs) const { return vs.value() + 1 == virtual_stages(); }

  /// The task of the neighbouring virtual stage whose output `t` of `stage` needs: an F for an F, a
  /// B for a B or BW. Nothing for W, for F on the first virtual stage (data) and for B on the last
  /// one (the loss). As in input_arrived, B stands for BW too.
  std::optional<placed_task> producer_of(stage_id stage, const task& t) const;
  /// The task of the neighbouring virtual stage that needs the output of `t`; the inverse of
  /// producer_of(). Nothing for W, for F on the last virtual stage and for B on the first one.
  std::optional<placed_task> consumer_of(stage_id stage, const task& t) const;

  /// The error names the invalid size or combination (zero stages, linear with two chunks, ...).
  status validate() const;

 private:
  std::optional<placed_task> neighbour(stage_id stage, const task& t, bool behind) const;
};

/// How many microbatches each replica has in a step; numbered over all replicas, those of a replica
/// follow those of the replicas before it. Empty: as many as the shape says, on each replica.
struct microbatch_counts {
  std::vector<std::uint32_t> by_replica;

  bool operator==(const microbatch_counts&) const = default;

  static microbatch_counts equal(std::uint32_t replicas, std::uint32_t each) {
    return {std::vector<std::uint32_t>(replicas, each)};
  }
  bool empty() const { return by_replica.empty(); }
  /// These, or, if they are empty, `each` on each replica.
  microbatch_counts or_equal(std::uint32_t replicas, std::uint32_t each) const {
    return empty() ? equal(replicas, each) : *this;
  }
  std::uint32_t of(replica_id replica) const { return by_replica.at(replica.value()); }
  /// The first one of the replica, numbered over all replicas.
  std::uint32_t first_of(replica_id replica) const;
  /// The replica of a microbatch, numbered over all replicas.
  replica_id replica_of(microbatch_id mb) const;
  std::uint32_t total() const;
};

/// Some consecutive microbatches of one replica's gradient sum, which one replica runs.
struct sum_part {
  replica_id sum;           ///< the replica whose gradient sum it is
  std::uint32_t first = 0;  ///< the first of these microbatches, numbered over all replicas
  std::uint32_t count = 0;
  bool opens = true;   ///< no microbatch of the sum comes before these
  bool closes = true;  ///< no microbatch of the sum comes after these

  std::uint32_t end() const { return first + count; }
  bool operator==(const sum_part&) const = default;
};

/// Who runs the microbatches of a step. Gradients are summed by replica as the counts say: each sum
/// in the order of its microbatches, then the sums in the order of the replicas. So a replica that
/// runs microbatches of another one changes no result.
///
/// A replica runs consecutive microbatches, numbered over all replicas. It may have to go on with a
/// sum that another one has opened, and it may leave a sum to another one. It first runs what it
/// leaves, and last what others have opened, so that nobody waits.
struct microbatch_shares {
  microbatch_counts counts;
  /// How many microbatches each replica runs; empty: its own.
  std::vector<std::uint32_t> shares = {};
  /// The replicas in the order in which they take their shares of the microbatches; as many as
  /// there are shares.
  std::vector<replica_id> order = {};

  bool operator==(const microbatch_shares&) const = default;

  bool are_own() const { return shares.empty(); }
  std::uint32_t of(replica_id replica) const {
    return are_own() ? counts.of(replica) : shares.at(replica.value());
  }
  /// What a replica runs, in the order in which it numbers it.
  std::vector<sum_part> parts_of(replica_id replica) const;
  struct place {
    replica_id sum;
    microbatch_id mb;  ///< numbered within the sum
  };
  /// The place of microbatch `mb` of `replica`, in the numbers of that replica, which runs it.
  place place_of(replica_id replica, microbatch_id mb) const;
  /// The same, numbered over all replicas.
  microbatch_id in_all(replica_id replica, microbatch_id mb) const {
    const auto at = place_of(replica, mb);
    return microbatch_id{counts.first_of(at.sum) + at.mb.value()};
  }
  /// The replica that runs a microbatch, numbered over all replicas.
  replica_id runner_of(microbatch_id mb) const;
  /// The error names what does not fit together.
  status validate(std::uint32_t replicas) const;
};

/// Most microbatches of a replica in a step.
inline constexpr std::uint32_t microbatches_max = 65536;

/// loaded: the order of the data. small_large_small: the cheapest microbatches at both ends, the
/// most expensive in the middle.
enum class admission : std::uint8_t { loaded, small_large_small };

std::string_view name(admission a);

/// Maps the position in the step to the index of the loaded microbatch. `cost` holds one estimate
/// per loaded microbatch, in any unit; if all are equal, the loaded order stays. O(m log m).
std::vector<std::uint32_t> admission_order(admission a, std::span<const double> cost);

}  // namespace rrfp
