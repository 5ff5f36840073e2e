/// A way to run a step: the policy that ranks the tasks of each stage, and how strictly it is
/// followed. A run may have several and choose one for each step; results do not depend on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/schedule/stage_core.hpp>

namespace rrfp {

using policy_factory = std::function<std::unique_ptr<policy>(stage_id)>;

struct strategy {
  /// In-order mode needs policies with one lane (a sequence).
  policy_factory make_policy;
  dispatch_mode mode = dispatch_mode::ready;
  /// The next three: as in stage_config.
  std::uint32_t window = 0;
  std::uint32_t weight_pieces = 0;
  std::uint32_t early_forwards = 0;
  /// For reports.
  std::string name = {};
};

/// Adds the first strategy with up to `most` early forwards, and with half as many as stages.
void add_early_forwards(std::vector<strategy>& strategies, std::uint32_t most,
                        std::uint32_t stages);

/// The core of a stage that can run each step by any of the strategies. `config` gives the rest:
/// what a strategy has itself is replaced, but early forwards are left out if forwards run in
/// order. The policies must pass check_policy().
stage_core make_stage_core(const stage_config& config, const std::vector<strategy>& strategies);

}  // namespace rrfp
