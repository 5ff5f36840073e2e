#include "emulated_compute.hpp"

#include <algorithm>

#include <ATen/ops/zeros.h>

namespace rrfp::actors {

emulated_compute::emulated_compute(const pipeline_shape& shape, stage_id stage,
                                   const emulated_model& model)
    : shape_(shape), stage_(stage), model_(model), message_(at::zeros({1}, at::kByte)) {}

void emulated_compute::begin_step(step_id step, compute::step_purpose /*purpose*/) {
  step_ = step;
  losses_.clear();
  held_ = 0;
  peak_ = 0;
}

at::Tensor emulated_compute::run(const launch& l, at::Tensor) {
  const auto& t = l.what;
  // All chunks of a stage share one slot, so each chunk counts its part of it.
  const auto slot = model_.slot_bytes ? model_.slot_bytes(step_, t.mb) : 0;
  const auto share = static_cast<std::int64_t>(slot) / shape_.chunks;
  if (t.kind == task_kind::forward && l.ends_task()) {
    held_ += share;
    peak_ = std::max(peak_.load(), held_.load());
  } else if (has_weight(t.kind) && l.ends_task()) {
    held_ -= share;
  }
  if (const auto next = shape_.consumer_of(stage_, t))
    return l.pass == forward_pass::again ? at::Tensor{} : message_to(*next);
  if (t.kind == task_kind::forward) losses_.push_back({t.mb, 0, model_.tokens});
  return {};
}

at::Tensor emulated_compute::message_to(const placed_task& next) {
  const auto bytes = model_.message_bytes(step_, next.vs, next.what);
  // A message that was not received yet keeps the smaller one alive.
  if (bytes > message_.numel()) message_ = at::zeros({bytes}, at::kByte);
  return message_.narrow(0, 0, bytes);
}

}  // namespace rrfp::actors
