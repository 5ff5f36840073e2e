/// A rank_compute for emulated devices: it returns tensors of the right size and counts memory.
#pragma once

#include <atomic>
#include <functional>

#include <rrfp/compute/without_parameters.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp::actors {

struct emulated_model {
  /// Returns the size of the message that carries the input of the task to the virtual stage.
  std::function<std::int64_t(step_id, replica_id, virtual_stage_id, const task&)> message_bytes;
  std::int64_t tokens = 0;  ///< of a microbatch
  replica_id replica;       ///< of the rank
  /// Bytes that a microbatch of a replica holds on the stage from its F to its W; empty: none.
  std::function<std::uint64_t(step_id, replica_id, microbatch_id)> slot_bytes;
};

class emulated_compute final : public compute::without_parameters {
 public:
  emulated_compute(const pipeline_shape& shape, stage_id stage, const emulated_model& model);

  void begin_step(step_id step, compute::step_purpose purpose,
                  const microbatch_shares& microbatches) override;
  tensor_buffer run(const launch& l, tensor_buffer input) override;

  std::vector<compute::microbatch_loss> losses() const override { return losses_; }
  std::int64_t held_bytes() const override { return held_; }
  std::int64_t peak_bytes() const override { return peak_; }

 private:
  std::uint64_t slot_bytes(microbatch_id mb) const;
  tensor_buffer message_to(const placed_task& next);

  const pipeline_shape shape_;
  const stage_id stage_;
  const emulated_model model_;
  tensor_buffer message_;  ///< as large as the largest one until now
  step_id step_;
  microbatch_shares microbatches_;
  std::vector<compute::microbatch_loss> losses_;
  std::atomic<std::int64_t> held_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

}  // namespace rrfp::actors
