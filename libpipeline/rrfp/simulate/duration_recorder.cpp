#include <rrfp/simulate/duration_table.hpp>

namespace rrfp::simulate {

duration_recorder::duration_recorder(const pipeline_shape& shape)
    : shape_(shape),
      table_(shape),
      forward_ended_(std::size_t{shape.virtual_stages()} * shape.microbatches),
      backward_ended_(forward_ended_.size()),
      in_pieces_(shape.virtual_stages()) {}

std::size_t duration_recorder::index(virtual_stage_id vs, microbatch_id mb) const {
  return std::size_t{vs.value()} * shape_.microbatches + mb.value();
}

void duration_recorder::on_event(stage_id stage, nanoseconds at, const event& e) {
  if (const auto* const begun = std::get_if<step_began>(&e)) step_ = begun->step;
  if (const auto* const arrived = std::get_if<input_arrived>(&e)) on_arrival(stage, at, *arrived);
}

void duration_recorder::on_arrival(stage_id stage, nanoseconds at, const input_arrived& e) {
  const task receiver{e.kind, e.mb, e.chunk};
  const auto sender = shape_.producer_of(stage, receiver);
  // No task produces the data of the first virtual stage.
  if (!sender) return;
  const auto& ended = e.kind == task_kind::forward ? forward_ended_ : backward_ended_;
  table_.set_link(step_, shape_.virtual_stage(stage, e.chunk), receiver,
                  at - ended[index(sender->vs, e.mb)]);
}

void duration_recorder::on_task(const task_span& ran) {
  const auto& t = ran.what.what;
  auto took = ran.end - ran.begin;
  if (t.kind == task_kind::weight) {
    // Other tasks may run between two pieces.
    auto& sum = in_pieces_[shape_.virtual_stage(ran.stage, t.chunk).value()];
    took = sum = (ran.what.piece.number == 0 ? 0 : sum) + took;
  }
  if (ran.what.ends_task()) table_.set_compute(ran.step, ran.stage, t, took);
  const auto at = index(shape_.virtual_stage(ran.stage, t.chunk), t.mb);
  if (t.kind == task_kind::forward && ran.what.pass != forward_pass::again)
    forward_ended_[at] = ran.end;
  if (is_backward(t.kind)) backward_ended_[at] = ran.end;
}

}  // namespace rrfp::simulate
