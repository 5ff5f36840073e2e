/// What a run counted: the peaks over its stages, and its bytes for other nodes.
#include <algorithm>

#include <rrfp/actors/control/fields.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/base/codec.hpp>

namespace rrfp::actors {

std::uint32_t run_summary::peak_slots() const {
  std::uint32_t peak = 0;
  for (const auto& s : stages) peak = std::max(peak, s.memory.slots_peak);
  return peak;
}

std::int64_t run_summary::peak_bytes() const {
  std::int64_t peak = 0;
  for (const auto& s : stages) peak = std::max(peak, s.peak_bytes);
  return peak;
}

compute::memory_counts run_summary::device_memory() const {
  compute::memory_counts most;
  for (const auto& s : stages) most = compute::most_of(most, s.device_memory);
  return most;
}

run_record to_record(run_summary s) { return {encoded(s), encoded(s.stages)}; }

result<run_summary> summary_of(const run_record& r) {
  decoder in{r.summary}, details{r.details};
  run_summary s;
  in(s);
  if (!r.details.empty()) details(s.stages);
  if (!in.complete() || !details.complete())
    return error{"the summary of a run is invalid", error_kind::failed};
  return s;
}

}  // namespace rrfp::actors
