#include "emulated_compute.hpp"

#include <algorithm>
#include <cstring>

namespace rrfp::actors {

namespace {

tensor_buffer zeros(std::int64_t bytes) {
  auto b = make_host_buffer(dtype::uint8, {bytes});
  std::memset(b.data, 0, b.bytes());
  return b;
}

}  // namespace

emulated_compute::emulated_compute(const pipeline_shape& shape, stage_id stage,
                                   const emulated_model& model)
    : shape_(shape), stage_(stage), model_(model), message_(zeros(1)) {}

void emulated_compute::begin_step(step_id step, compute::step_purpose,
                                  const microbatch_shares& microbatches) {
  step_ = step;
  microbatches_ = microbatches;
  losses_.clear();
  held_ = 0;
  peak_ = 0;
}

tensor_buffer emulated_compute::run(const launch& l, tensor_buffer) {
  const auto& t = l.what;
  // All chunks of a stage share one slot, so each chunk counts its part of it.
  const auto slot = model_.slot_bytes ? slot_bytes(t.mb) : 0;
  const auto share = static_cast<std::int64_t>(slot) / shape_.chunks;
  if (t.kind == task_kind::forward && l.ends_task()) {
    held_ += share;
    peak_ = std::max(peak_.load(), held_.load());
  } else if (has_weight(t.kind) && l.ends_task()) {
    held_ -= share;
  }
  if (const auto next = shape_.consumer_of(stage_, t))
    return l.pass == forward_pass::again ? tensor_buffer{} : message_to(*next);
  if (t.kind == task_kind::forward) losses_.push_back({t.mb, 0, model_.tokens});
  return {};
}

std::uint64_t emulated_compute::slot_bytes(microbatch_id mb) const {
  const auto at = microbatches_.place_of(model_.replica, mb);
  return model_.slot_bytes(step_, at.sum, at.mb);
}

tensor_buffer emulated_compute::message_to(const placed_task& next) {
  const auto bytes = model_.message_bytes(step_, model_.replica, next.vs, next.what);
  // A message that was not received yet keeps the smaller one alive.
  if (bytes > message_.elements()) message_ = zeros(bytes);
  auto first = message_;
  first.sizes = {bytes};
  return first;
}

}  // namespace rrfp::actors
