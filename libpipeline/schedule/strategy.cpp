#include <rrfp/schedule/strategy.hpp>

namespace rrfp {

stage_core make_stage_core(const stage_config& config, const std::vector<strategy>& strategies) {
  std::vector<stage_core::way> ways;
  for (const auto& s : strategies) {
    auto own = config;
    own.mode = s.mode;
    own.window = s.window;
    own.weight_pieces = s.weight_pieces;
    ways.push_back({own, s.make_policy(config.stage)});
  }
  return stage_core{std::move(ways)};
}

}  // namespace rrfp
