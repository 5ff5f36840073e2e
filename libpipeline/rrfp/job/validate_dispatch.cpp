/// Checks of [dispatch]: whether its keys fit each other, the pipeline and the policy.
#include "validate.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/core/sequence.hpp>
#include <rrfp/job/closest.hpp>
#include <rrfp/job/value.hpp>

namespace rrfp::job {

namespace {

status check_early_forwards(const job& j, const provenance& from) {
  const auto number = j.dispatch.early_forwards;
  const bool in_order = j.dispatch.mode == dispatch_mode::in_order;
  if (number == 0 || (!in_order && j.dispatch.slot_unit == slot_unit_kind::microbatch))
    return success();
  const auto* where = in_order ? "in mode in-order" : "with dispatch.slot_unit = \"chunk\"";
  return from.blame("dispatch.early_forwards",
                    std::string{"expected 0 "} + where + ", got " + std::to_string(number));
}

std::string describe_unknown(const std::string& policy, std::span<const std::string_view> known) {
  std::string text = "expected one of ";
  for (const auto name : known) text += std::string{name} + ", ";
  text += "table:FILE.csv, lib:FILE.so, got " + in_quotes(policy);
  const auto near = policy == "1f1b" || policy == "1F1B" ? "one_f_one_b" : closest(policy, known);
  return near ? text + ", did you mean " + std::string{*near} + "?" : text;
}

}  // namespace

status check_sequence_limits(const job& j, const std::vector<sequence>& sequences) {
  const auto shape = effective_shape(j);
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    const auto limit = effective_limit(j, stage_id{s});
    const auto fits = check_slots(shape, stage_id{s}, sequences[s],
                                  {.slots = limit.slots, .activations = limit.activations});
    if (!fits) return fits;
  }
  return success();
}

status check_dispatch(const job& j, const provenance& from, const policy_registry& registry) {
  const auto bytes = j.dispatch.slot_bytes;
  if (j.dispatch.slot_unit == slot_unit_kind::chunk && bytes != 0)
    return from.blame(
        "dispatch.slot_bytes",
        "expected 0 with dispatch.slot_unit = \"chunk\", got " + std::to_string(bytes));
  const auto& policy = j.dispatch.policy;
  std::vector<std::string_view> known;
  for (const auto& p : registry.known()) known.push_back(p.name);
  const bool is_file = policy.starts_with("table:") || policy.starts_with("lib:");
  if (!is_file && std::find(known.begin(), known.end(), policy) == known.end())
    return from.blame("dispatch.policy", describe_unknown(policy, known));
  const auto policies = registry.make(policy, effective_shape(j));
  if (!policies) return from.blame("dispatch.policy", policies.message());
  if (auto early = check_early_forwards(j, from); !early) return early;
  const auto* sequences = (*policies)->sequences();
  if (sequences == nullptr || j.dispatch.mode == dispatch_mode::ready) return success();
  const auto fits = check_sequence_limits(j, *sequences);
  return fits ? success() : from.blame("dispatch.slots", fits.message(), "dispatch.mode");
}

}  // namespace rrfp::job
