#include "delayed_wire.hpp"

#include <optional>
#include <utility>

namespace rrfp::actors {

namespace {

/// The task whose input a message carries, and its virtual stage; nothing for messages without
/// injected delays.
std::optional<std::pair<virtual_stage_id, task>> input_task_of(const pipeline_shape& shape,
                                                               const message_header& h) {
  if (!is_input(h.kind) || h.from.stage == h.to.stage) return std::nullopt;
  const auto kind = h.kind == payload::activation ? task_kind::forward : task_kind::backward;
  return std::pair{shape.virtual_stage(h.to.stage, h.chunk), task{kind, h.mb, h.chunk}};
}

}  // namespace

std::unique_ptr<transport> with_delays(const injected_delays& delays, const pipeline_shape& shape,
                                       std::unique_ptr<transport> wire) {
  if (!delays.link) return wire;
  return make_delaying_transport(std::move(wire),
                                 [shape, link = delays.link](const message_header& h) {
                                   const auto t = input_task_of(shape, h);
                                   return t ? link(h.step, t->first, h.to, t->second) : 0.0;
                                 });
}

}  // namespace rrfp::actors
