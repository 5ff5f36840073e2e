#include "delayed_wire.hpp"

#include <chrono>
#include <optional>
#include <utility>

#include "control/run_context.hpp"

namespace rrfp::actors {

namespace {

/// The task whose input a message carries, and its virtual stage; nothing for messages without
/// injected delays or losses.
std::optional<std::pair<virtual_stage_id, task>> input_task_of(const pipeline_shape& shape,
                                                               const message_header& h) {
  if (!is_input(h.kind) || h.from.stage == h.to.stage) return std::nullopt;
  const auto kind = h.kind == payload::activation ? task_kind::forward : task_kind::backward;
  return std::pair{shape.virtual_stage(h.to.stage, h.chunk),
                   numbered(shape, h.to.replica, {kind, h.mb, h.chunk})};
}

}  // namespace

std::unique_ptr<transport> with_delays(const injected_delays& delays, const pipeline_shape& shape,
                                       std::unique_ptr<transport> wire,
                                       std::function<void()> on_resent) {
  if (delays.link)
    wire = make_delaying_transport(std::move(wire),
                                   [shape, link = delays.link](const message_header& h) {
                                     const auto t = input_task_of(shape, h);
                                     return t ? link(h.step, t->first, h.to.rank, t->second) : 0.0;
                                   });
  if (!delays.fate) return wire;
  wire = make_lossy_transport(
      std::move(wire), [shape, fate = delays.fate](const message_header& h, std::uint32_t attempt) {
        const auto t = input_task_of(shape, h);
        return t ? fate(h.step, t->first, h.to.rank, t->second, attempt) : attempt_fate{};
      });
  const std::chrono::duration<double, std::milli> after{delays.resend_ms};
  return make_resending_transport(std::move(wire),
                                  std::chrono::duration_cast<std::chrono::nanoseconds>(after),
                                  std::move(on_resent));
}

}  // namespace rrfp::actors
