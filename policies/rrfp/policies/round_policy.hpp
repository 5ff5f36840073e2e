/// The common base of the policies that work in rounds: one lane per direction, and the order
/// within the lanes.
///
/// F takes the smaller chunk first, as in the paper, because its output has the longer path ahead;
/// or the larger chunk, which brings a microbatch that holds memory nearer to its B. B takes the
/// larger chunk first, for the same reason in the other direction. W takes the oldest microbatch
/// first, because it frees its slot the soonest; among its chunks the larger one, whose B ran
/// first. Ties go to the smaller microbatch.
///
/// A round is one pass over the lanes; the policies differ only in which lane goes first.
#pragma once

#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp::policies {

class round_policy : public policy {
 public:
  enum class forward_first : std::uint8_t { smaller_chunk, larger_chunk };

  /// `backward` is BW (fused, two lanes) or B (W split off into a third lane).
  round_policy(const pipeline_shape& shape, task_kind backward,
               forward_first chunk = forward_first::smaller_chunk);

  task_kind backward_of(microbatch_id, chunk_id) const final { return backward_; }
  std::uint32_t lanes() const final { return backward_ == task_kind::backward ? 3 : 2; }
  std::uint32_t lane_of(const task& t) const final;
  std::uint64_t rank(const task& t) const final;

 protected:
  /// W, if split off, comes after both.
  static lane_order backward_then_forward() { return {{backward_lane, forward_lane}, 2}; }
  static lane_order forward_then_backward() { return {{forward_lane, backward_lane}, 2}; }

  static constexpr std::uint8_t forward_lane = 0;
  static constexpr std::uint8_t backward_lane = 1;
  static constexpr std::uint8_t weight_lane = 2;

 private:
  std::uint32_t chunks_;
  task_kind backward_;
  forward_first forward_first_;
};

}  // namespace rrfp::policies
