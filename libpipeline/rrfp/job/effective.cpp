#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/job/job.hpp>

#include "schema.hpp"
#include "validate.hpp"

namespace rrfp::job {

pipeline_shape effective_shape(const job& j) {
  const auto by_chunks = j.pipeline.chunks == 1 ? placement::linear : placement::interleaved;
  return {j.pipeline.stages, j.pipeline.chunks, j.pipeline.microbatches,
          j.pipeline.layout.value_or(by_chunks)};
}

std::optional<data_options> held_out_data(const job& j) {
  const data_sources& from = j.eval;
  if (from == data_sources{}) return std::nullopt;
  auto held_out = j.data;
  static_cast<data_sources&>(held_out) = from;
  ++held_out.shapes_seed;
  held_out.order = sample_order::file;
  held_out.pack_delay = 0;
  return held_out;
}

memory_limit effective_limit(const job& j, stage_id stage) {
  RRFP_CHECK(stage.value() < j.pipeline.stages, "the stage must belong to the job");
  memory_limit limit{0, j.dispatch.slot_bytes};
  if (j.dispatch.slots)
    limit.slots = *j.dispatch.slots;
  else if (j.dispatch.mode == dispatch_mode::ready)
    limit.slots = 2 * j.pipeline.stages;
  if (limit.slots == slots_of_stages) limit.slots = j.pipeline.stages;
  if (limit.slots == slots_of_1f1b) limit.slots = j.pipeline.stages - stage.value();
  if (j.dispatch.slot_unit == slot_unit_kind::chunk)
    limit.activations = j.pipeline.chunks * std::exchange(limit.slots, 0);
  if (const auto* more = schema_of(j).more()) more->limit(j, limit);
  return limit;
}

std::string source_of(const job& j) { return j.source.empty() ? "the job" : j.source; }

error blame(const job& j, std::string_view key, const std::string& message) {
  const auto found = j.set_by.find(key);
  const auto where =
      found == j.set_by.end() ? source_of(j) + ": " + std::string{key} : found->second;
  return error{where + ": " + message};
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace rrfp::job
