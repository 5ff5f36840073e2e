#include <rrfp/policies/guarded_policy.hpp>

namespace rrfp::policies {

namespace {

class guarded_policy final : public policy {
 public:
  guarded_policy(std::string name, std::unique_ptr<policy> own)
      : name_(std::move(name)), own_(std::move(own)) {}

  std::string_view name() const override { return name_; }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return calling(name_, "backward_of()", [&] { return own_->backward_of(mb, chunk); });
  }
  std::uint32_t lanes() const override {
    return calling(name_, "lanes()", [&] { return own_->lanes(); });
  }
  std::uint32_t lane_of(const task& t) const override {
    return calling(name_, "lane_of()", [&] { return own_->lane_of(t); });
  }
  std::uint64_t rank(const task& t) const override {
    return calling(name_, "rank()", [&] { return own_->rank(t); });
  }
  lane_order order(const stage_view& now) const override {
    const auto lanes = calling(name_, "order()", [&] { return own_->order(now); });
    if (!names_each_once(lanes))
      throw std::runtime_error("policy '" + name_ +
                               "': order(): expected different lanes from 0 to " +
                               std::to_string(lanes_max - 1));
    return lanes;
  }
  std::uint32_t weight_pieces() const override {
    const auto pieces = calling(name_, "weight_pieces()", [&] { return own_->weight_pieces(); });
    if (pieces < 1 || pieces > weight_pieces_max)
      throw std::runtime_error("policy '" + name_ + "': weight_pieces(): expected 1 to " +
                               std::to_string(weight_pieces_max) + ", got " +
                               std::to_string(pieces));
    return pieces;
  }
  void reset() override {
    calling(name_, "reset()", [&] { own_->reset(); });
  }
  void launched(const task& t) override {
    calling(name_, "launched()", [&] { own_->launched(t); });
  }
  void waited() override {
    calling(name_, "waited()", [&] { own_->waited(); });
  }

 private:
  static bool names_each_once(const lane_order& order) {
    if (order.count > lanes_max) return false;
    std::uint32_t named = 0;
    for (std::uint32_t i = 0; i < order.count; ++i) {
      if (order.lane[i] >= lanes_max || (named >> order.lane[i] & 1) != 0) return false;
      named |= 1U << order.lane[i];
    }
    return true;
  }

  const std::string name_;
  const std::unique_ptr<policy> own_;
};

}  // namespace

std::unique_ptr<policy> guarded(std::string name, std::unique_ptr<policy> own) {
  return std::make_unique<guarded_policy>(std::move(name), std::move(own));
}

}  // namespace rrfp::policies
