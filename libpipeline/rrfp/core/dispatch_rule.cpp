#include <rrfp/core/stage_core.hpp>

namespace rrfp {

stage_core make_stage_core(stage_config config, const dispatch_rule& rule) {
  config.mode = rule.mode;
  config.weight_pieces = rule.weight_pieces;
  config.early_forwards = config.forwards_in_order ? 0 : rule.early_forwards;
  config.renews_policy = rule.renews_policy;
  return stage_core{config, rule.make_policy};
}

}  // namespace rrfp
