/// The collectives of a group of ranks: the tensor-parallel ranks of a stage, for its operators, or
/// the replicas of a rank, for its gradients.
///
/// The runtime implements the interface. A null group, or one of size 1, means that a stage has one
/// rank; the operators then behave as without a group.
///
/// Not thread-safe: the compute thread of the rank calls it, in forward and in backward.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/core/event.hpp>

namespace rrfp::compute {

/// A collective failed: the ranks run different tasks, a rank is missing, or the group was aborted.
/// stage_compute rethrows it as a compute_error with fault `collective`.
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

  /// Whether the buffers must be in the memory of the rank's device; else on the host.
  virtual bool on_device() const { return false; }
  /// In place, in contiguous memory; float32, float64 or int64, of the same shape on every rank.
  /// Sums in the order of the ranks, so all ranks get the same bits. Throws group_error.
  virtual void all_reduce_sum(const tensor_buffer& b) = 0;
  virtual void all_reduce_max(const tensor_buffer& b) = 0;

  /// Sets the launch to which the following calls belong.
  virtual void set_task(step_id step, const launch& l) = 0;
};

/// Whether the stage has more than one rank.
inline bool is_parallel(const std::shared_ptr<rank_group>& group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace rrfp::compute
