#include <rrfp/core/stage_snapshot.hpp>

namespace rrfp {

bool stage_snapshot::is_done(const task& t) const {
  const auto& p = progress_of(t.mb, t.chunk);
  if (t.kind == task_kind::forward) return p.forward_done;
  return is_backward(t.kind) ? p.backward_done : p.weight_done;
}

bool stage_snapshot::has_sent_output_of(const task& t) const {
  return is_done(t) || (t.kind == task_kind::forward && progress_of(t.mb, t.chunk).forward_early);
}

std::optional<task> stage_snapshot::own_task_before(const task& t) const {
  if (t.kind == task_kind::forward) return std::nullopt;
  const task before{is_backward(t.kind) ? task_kind::forward : task_kind::backward, t.mb, t.chunk};
  return is_done(before) ? std::nullopt : std::optional{before};
}

}  // namespace rrfp
