#include "stage_cores.hpp"

#include <limits>

namespace rrfp::simulate {

std::string_view name(transport t) {
  switch (t) {
    case transport::asynchronous: return "asynchronous";
    case transport::blocking: return "blocking";
  }
  return "?";
}

result<std::vector<stage_core>> make_cores(const plan& p) {
  std::vector<stage_core> cores;
  cores.reserve(p.shape.stages);
  for (std::uint32_t s = 0; s < p.shape.stages; ++s) {
    auto hint = p.make_policy(stage_id{s});
    RRFP_CHECK(hint != nullptr, "make_policy must return a policy for every stage");
    if (p.mode == dispatch_mode::in_order && hint->lanes() != 1)
      return error{"in-order mode: expected a policy with a fixed schedule, got '" +
                   std::string(hint->name()) + "', which has none"};
    cores.emplace_back(stage_config{.shape = p.shape,
                                    .stage = stage_id{s},
                                    .ranks = 1,
                                    .lookahead = p.lookahead,
                                    .mode = p.mode,
                                    .limit = p.limits.empty() ? p.limit : p.limits[s],
                                    .window = p.window,
                                    .weight_pieces = p.weight_pieces},
                       std::move(hint));
  }
  return cores;
}

status check_plan(const plan& p) {
  if (auto valid = p.shape.validate(); !valid) return valid;
  const auto inputs = std::uint64_t{2} * p.shape.chunks * p.shape.microbatches;
  if (inputs >= std::numeric_limits<std::uint32_t>::max())
    return error{"expected chunks * microbatches below 2^31, got " + std::to_string(inputs / 2)};
  if (p.messages == transport::blocking && (p.mode != dispatch_mode::in_order || p.lookahead != 0))
    return error{"blocking transport: expected mode in-order without lookahead, got " +
                 std::string(name(p.mode)) + " with lookahead " + std::to_string(p.lookahead)};
  RRFP_CHECK(p.make_policy != nullptr, "a plan must have a policy");
  RRFP_CHECK(p.limits.empty() || p.limits.size() == p.shape.stages,
             "limits must have one entry per stage");
  return success();
}

}  // namespace rrfp::simulate
