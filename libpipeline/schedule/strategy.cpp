#include <rrfp/schedule/strategy.hpp>

#include <algorithm>
#include <set>

namespace rrfp {

void add_early_forwards(std::vector<strategy>& strategies, std::uint32_t most,
                        std::uint32_t stages) {
  for (const auto number : std::set{std::min(most, (stages + 1) / 2), most}) {
    if (number == 0) continue;
    auto with = strategies.front();
    with.early_forwards = number;
    with.name += " with " + std::to_string(number) + " early F";
    strategies.push_back(std::move(with));
  }
}

stage_core make_stage_core(const stage_config& config, const std::vector<strategy>& strategies) {
  std::vector<stage_core::way> ways;
  for (const auto& s : strategies) {
    auto own = config;
    own.mode = s.mode;
    own.window = s.window;
    own.weight_pieces = s.weight_pieces;
    own.early_forwards = config.forwards_in_order ? 0 : s.early_forwards;
    ways.push_back({own, s.make_policy(config.stage)});
  }
  return stage_core{std::move(ways)};
}

}  // namespace rrfp
