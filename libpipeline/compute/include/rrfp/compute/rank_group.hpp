/// The tensor-parallel ranks of a stage, as the operators see them: somebody to sum with.
///
/// The runtime binds it to real collectives. A null group, or one of size 1, means that the stage
/// has one rank: no operator then does anything that it would not do without a group.
///
/// Not thread-safe: the compute thread of the rank calls it, in forward and in backward.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <ATen/core/Tensor.h>

#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/ids.hpp>

namespace rrfp::compute {

/// The ranks could not come together: they disagree, one is missing, the group was aborted. Leaves
/// stage_compute as a compute_error of fault `collective`.
class group_error : public std::runtime_error {
 public:
  explicit group_error(const std::string& message) : std::runtime_error(message) {}
};

class rank_group {
 public:
  rank_group() = default;
  rank_group(const rank_group&) = delete;
  rank_group& operator=(const rank_group&) = delete;
  virtual ~rank_group() = default;

  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;

  /// In place, a float32, float64 or int64 tensor of one shape on every rank. The sum runs in the
  /// order of the ranks, so all get the same bits. Throws group_error.
  virtual void all_reduce_sum(at::Tensor& t) = 0;
  virtual void all_reduce_max(at::Tensor& t) = 0;

  /// The launch that the calls from here on belong to.
  virtual void set_task(step_id step, const launch& l) = 0;
};

/// Whether there is anybody else.
inline bool is_parallel(const std::shared_ptr<rank_group>& group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace rrfp::compute
