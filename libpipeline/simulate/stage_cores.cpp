#include "stage_cores.hpp"

#include <limits>

#include <rrfp/schedule/sequence.hpp>

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
    const stage_config config{.shape = p.shape,
                              .stage = stage_id{s},
                              .ranks = p.ranks,
                              .lookahead = p.lookahead,
                              .limit = p.limits.empty() ? p.limit : p.limits[s],
                              .agreement = p.agreement};
    for (const auto& way : p.strategies) {
      if (way.mode != dispatch_mode::in_order) continue;
      const auto hint = way.make_policy(config.stage);
      if (hint->lanes() != 1)
        return error{"in-order mode: expected a policy with a fixed schedule, got '" +
                     std::string(hint->name()) + "', which has none"};
    }
    cores.push_back(make_stage_core(config, p.strategies));
  }
  return cores;
}

status check_plan(const plan& p) {
  if (auto valid = p.shape.validate(); !valid) return valid;
  const auto inputs = std::uint64_t{2} * p.shape.chunks * p.shape.microbatches;
  if (inputs >= std::numeric_limits<std::uint32_t>::max() - 1)
    return error{"expected chunks * microbatches below 2^31, got " + std::to_string(inputs / 2)};
  RRFP_CHECK(!p.strategies.empty(), "a plan must have a strategy");
  for (const auto& way : p.strategies) {
    if (p.messages == transport::blocking &&
        (way.mode != dispatch_mode::in_order || p.lookahead != 0))
      return error{"blocking transport: expected mode in-order without lookahead, got " +
                   std::string(name(way.mode)) + " with lookahead " + std::to_string(p.lookahead)};
    RRFP_CHECK(way.make_policy != nullptr, "a strategy must have a policy");
  }
  RRFP_CHECK(p.limits.empty() || p.limits.size() == p.shape.stages,
             "limits must have one entry per stage");
  RRFP_CHECK(p.ranks >= 1 && p.ranks <= 64, "a stage has 1 to 64 ranks");
  return success();
}

bool keeps_limits(const plan& p, const strategy& way) {
  const auto limit_of = [&](std::uint32_t stage) {
    return p.limits.empty() ? p.limit : p.limits[stage];
  };
  const bool takes_any = limit_of(0).run_ahead == 0 && p.agreement == rank_agreement::arrivals;
  if (way.mode == dispatch_mode::ready) return way.window == 0 || takes_any;
  if (!takes_any) return false;
  for (std::uint32_t s = 0; s < p.shape.stages; ++s) {
    const auto limit = limit_of(s);
    if (limit.bytes != 0) return false;
    const auto order = obeyed_order(*way.make_policy(stage_id{s}), p.shape);
    if (!check_slots(p.shape, stage_id{s}, order, limit)) return false;
  }
  return true;
}

}  // namespace rrfp::simulate
