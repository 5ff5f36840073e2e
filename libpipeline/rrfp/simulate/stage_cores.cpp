#include "stage_cores.hpp"

#include <limits>

#include <rrfp/base/enum_names.hpp>

namespace rrfp::simulate {

std::string_view name(transport t) { return name_in({"asynchronous", "blocking"}, t); }

result<std::vector<stage_core>> make_cores(const plan& p) {
  std::vector<stage_core> cores;
  cores.reserve(p.shape.stages);
  for (std::uint32_t s = 0; s < p.shape.stages; ++s) {
    const stage_config config{.shape = p.shape,
                              .stage = stage_id{s},
                              .ranks = p.ranks,
                              .lookahead = p.lookahead,
                              .limit = p.limits.empty() ? p.limit : p.limits[s]};
    if (p.rule.mode == dispatch_mode::in_order) {
      const auto hint = p.rule.make_policy(p.shape, config.stage);
      if (hint->lanes() != 1)
        return error{"in-order mode: expected a policy with a fixed schedule, got '" +
                     std::string(hint->name()) + "', which has none"};
    }
    cores.push_back(make_stage_core(config, p.rule));
  }
  return cores;
}

status check_plan(const plan& p) {
  if (auto valid = p.shape.validate(); !valid) return valid;
  const auto inputs = std::uint64_t{2} * p.shape.chunks * p.shape.microbatches;
  if (inputs >= std::numeric_limits<std::uint32_t>::max() - 1)
    return error{"expected chunks * microbatches below 2^31, got " + std::to_string(inputs / 2)};
  RRFP_CHECK(p.rule.make_policy != nullptr, "a plan must have a policy");
  if (p.messages == transport::blocking &&
      (p.rule.mode != dispatch_mode::in_order || p.lookahead != 0))
    return error{"blocking transport: expected mode in-order without lookahead, got " +
                 std::string(name(p.rule.mode)) + " with lookahead " + std::to_string(p.lookahead)};
  RRFP_CHECK(p.limits.empty() || p.limits.size() == p.shape.stages,
             "limits must have one entry per stage");
  RRFP_CHECK(p.ranks >= 1 && p.ranks <= 64, "a stage has 1 to 64 ranks");
  return success();
}
}  // namespace rrfp::simulate
