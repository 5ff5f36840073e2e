#include <rrfp/core/placement.hpp>

#include <algorithm>
#include <functional>
#include <numeric>

namespace rrfp {

std::string_view name(admission a) {
  switch (a) {
    case admission::loaded: return "loaded";
    case admission::small_large_small: return "small_large_small";
  }
  return "?";
}

std::vector<std::uint32_t> admission_order(admission a, std::span<const double> cost) {
  std::vector<std::uint32_t> order(cost.size());
  std::iota(order.begin(), order.end(), 0U);
  const bool differ =
      std::adjacent_find(cost.begin(), cost.end(), std::not_equal_to<>{}) != cost.end();
  if (a == admission::loaded || !differ) return order;
  // Deal the sorted microbatches to the two ends in turn, so that the largest meet in the middle.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t x, std::uint32_t y) { return cost[x] < cost[y]; });
  std::vector<std::uint32_t> dealt(order.size());
  std::size_t front = 0;
  std::size_t back = order.size();
  for (std::size_t i = 0; i < order.size(); ++i) dealt[i % 2 == 0 ? front++ : --back] = order[i];
  return dealt;
}

}  // namespace rrfp
