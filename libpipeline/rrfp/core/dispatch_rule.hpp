/// How all stages of a run choose their tasks: the policy that ranks them, and how strictly it is
/// followed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <rrfp/core/stage_core.hpp>

namespace rrfp {

using policy_factory = std::function<std::unique_ptr<policy>(stage_id)>;

struct dispatch_rule {
  /// In-order mode needs policies with one lane (a sequence).
  policy_factory make_policy;
  dispatch_mode mode = dispatch_mode::ready;
  /// The next two: as in stage_config.
  std::uint32_t weight_pieces = 0;
  std::uint32_t early_forwards = 0;
};

/// The core of a stage that follows the rule. `config` gives the rest; early forwards are left out
/// if forwards run in order. The policies must pass check_policy().
stage_core make_stage_core(stage_config config, const dispatch_rule& rule);

}  // namespace rrfp
