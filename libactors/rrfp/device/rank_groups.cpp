#include "rank_groups.hpp"

#include <algorithm>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/tp_coord/channel_collective.hpp>
#include <rrfp/tp_coord/in_process_collective.hpp>

namespace rrfp::actors {

class late_channel final : public tp_coord::rank_channel {
 public:
  late_channel(rank_id own, std::uint32_t size) : own_(own), size_(size) {}

  void attach(std::unique_ptr<tp_coord::rank_channel> to) { to_ = std::move(to); }

  rank_id rank() const override { return own_; }
  std::uint32_t size() const override { return size_; }
  status send(rank_id to, std::uint64_t tag, std::span<const std::byte> bytes) override {
    return attached().send(to, tag, bytes);
  }
  result<std::optional<std::size_t>> receive(rank_id from, std::uint64_t tag,
                                             std::span<std::byte> into,
                                             std::chrono::milliseconds limit) override {
    return attached().receive(from, tag, into, limit);
  }
  void close(const std::string& why) override {
    if (to_) to_->close(why);
  }

 private:
  tp_coord::rank_channel& attached() const {
    RRFP_CHECK(to_ != nullptr, "a channel is used once the nodes are connected");
    return *to_;
  }

  const rank_id own_;
  const std::uint32_t size_;
  std::unique_ptr<tp_coord::rank_channel> to_;
};

std::vector<std::shared_ptr<tp_coord::collective>> rank_groups::make(
    std::uint32_t id, const std::vector<rank_address>& members, const std::vector<bool>& is_here) {
  const auto size = static_cast<std::uint32_t>(members.size());
  std::vector<std::shared_ptr<tp_coord::collective>> made(size);
  if (size == 1) return made;
  if (std::find(is_here.begin(), is_here.end(), false) == is_here.end()) {
    auto group = tp_coord::make_in_process_group(size, {.limit = limit_});
    std::move(group.begin(), group.end(), made.begin());
    return made;
  }
  for (std::uint32_t r = 0; r < size; ++r) {
    if (!is_here[r]) continue;
    auto channel = std::make_shared<late_channel>(rank_id{r}, size);
    pending_.push_back({channel, {id, members}, rank_id{r}});
    made[r] = tp_coord::make_channel_collective(std::move(channel), {.limit = limit_});
  }
  return made;
}

void rank_groups::attach(ucx_transport& wire) {
  for (auto& p : std::exchange(pending_, {})) p.channel->attach(wire.open_channel(p.group, p.own));
}

}  // namespace rrfp::actors
