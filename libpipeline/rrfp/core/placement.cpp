#include <rrfp/core/placement.hpp>

#include <numeric>
#include <string>

namespace rrfp {

std::string_view name(placement p) {
  switch (p) {
    case placement::linear: return "linear";
    case placement::interleaved: return "interleaved";
    case placement::v: return "v";
  }
  return "?";
}

std::optional<placement> placement_of(std::string_view text) {
  for (const auto p : {placement::linear, placement::interleaved, placement::v})
    if (name(p) == text) return p;
  return std::nullopt;
}

virtual_stage_id pipeline_shape::virtual_stage(stage_id stage, chunk_id chunk) const {
  RRFP_CHECK(stage.value() < stages && chunk.value() < chunks, "stage or chunk out of range");
  switch (layout) {
    case placement::linear:
    case placement::interleaved: return virtual_stage_id{chunk.value() * stages + stage.value()};
    case placement::v:
      return virtual_stage_id{chunk.value() == 0 ? stage.value() : 2 * stages - 1 - stage.value()};
  }
  RRFP_CHECK(false, "unknown placement");
}

chunk_position pipeline_shape::at(virtual_stage_id vs) const {
  RRFP_CHECK(vs.value() < virtual_stages(), "virtual stage out of range");
  const auto chunk = vs.value() / stages;
  const auto place = vs.value() % stages;
  const bool turned = layout == placement::v && chunk == 1;
  return {stage_id{turned ? stages - 1 - place : place}, chunk_id{chunk}};
}

std::optional<placed_task> pipeline_shape::neighbour(stage_id stage, const task& t,
                                                     bool behind) const {
  if (t.kind == task_kind::weight) return std::nullopt;
  const auto vs = virtual_stage(stage, t.chunk);
  if (behind ? is_last(vs) : is_first(vs)) return std::nullopt;
  const virtual_stage_id to{behind ? vs.value() + 1 : vs.value() - 1};
  const auto place = at(to);
  const auto kind = is_backward(t.kind) ? task_kind::backward : task_kind::forward;
  return placed_task{to, place.stage, {kind, t.mb, place.chunk}};
}

std::optional<placed_task> pipeline_shape::producer_of(stage_id stage, const task& t) const {
  return neighbour(stage, t, is_backward(t.kind));
}

std::optional<placed_task> pipeline_shape::consumer_of(stage_id stage, const task& t) const {
  return neighbour(stage, t, !is_backward(t.kind));
}

std::uint32_t microbatch_counts::first_of(replica_id replica) const {
  const auto first = by_replica.begin();
  return std::accumulate(first, first + replica.value(), 0U);
}

replica_id microbatch_counts::replica_of(microbatch_id mb) const {
  RRFP_CHECK(mb.value() < total(), "the microbatch must belong to the step");
  replica_id replica;
  for (auto left = mb.value(); left >= of(replica); replica = replica_id{replica.value() + 1})
    left -= of(replica);
  return replica;
}

std::uint32_t microbatch_counts::total() const {
  return std::accumulate(by_replica.begin(), by_replica.end(), 0U);
}

status pipeline_shape::validate() const {
  if (stages == 0) return error{"stages: expected at least 1, got 0"};
  if (chunks == 0) return error{"chunks: expected at least 1, got 0"};
  if (microbatches == 0) return error{"microbatches: expected at least 1, got 0"};
  if (layout == placement::linear && chunks != 1)
    return error{"placement linear: expected chunks = 1, got " + std::to_string(chunks)};
  if (layout == placement::v && chunks != 2)
    return error{"placement v: expected chunks = 2, got " + std::to_string(chunks)};
  return success();
}

}  // namespace rrfp
