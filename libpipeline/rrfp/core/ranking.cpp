#include "ranking.hpp"

#include <algorithm>
#include <tuple>

namespace rrfp {

ranking::ranking(const pipeline_shape& shape, std::unique_ptr<policy> hint)
    : hint_(std::move(hint)), shape_(shape) {
  RRFP_CHECK(hint_ != nullptr, "a policy");
  RRFP_CHECK(hint_->lanes() >= 1 && hint_->lanes() <= lanes_max, "lanes() must be 1 to lanes_max");
  struct key {
    std::uint32_t lane;
    std::uint64_t rank;
    task what;
  };
  std::vector<key> keys;
  for (const auto& t : tasks_of(*hint_, shape_)) {
    const auto lane = hint_->lane_of(t);
    RRFP_CHECK(lane < hint_->lanes(), "lane_of must return a lane of the policy");
    keys.push_back({lane, hint_->rank(t), t});
  }
  std::ranges::sort(keys, {}, [](const key& k) {
    return std::tuple{k.lane, k.rank, k.what.mb, k.what.chunk, k.what.kind};
  });
  position_.assign(shape_.task_indices(), none);
  for (const auto& k : keys) {
    const auto at = size();
    tasks_.push_back(k.what);
    position_[shape_.index(k.what)] = at;
    auto& lane = lanes_[k.lane];
    if (lane.begin == lane.end) lane.begin = at;
    lane.end = at + 1;
  }
}

std::array<std::uint8_t, lanes_max> ranking::order(const stage_view& now) const {
  const auto named = hint_->order(now);
  std::array<std::uint8_t, lanes_max> order{};
  std::uint32_t used = 0;
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < named.count; ++i) {
    RRFP_CHECK(named.lane[i] < lanes_max && (used >> named.lane[i] & 1) == 0,
               "a lane order names each lane at most once");
    used |= 1U << named.lane[i];
    order[count++] = named.lane[i];
  }
  for (std::uint8_t lane = 0; lane < lanes_max; ++lane)
    if ((used >> lane & 1) == 0) order[count++] = lane;
  return order;
}

}  // namespace rrfp
