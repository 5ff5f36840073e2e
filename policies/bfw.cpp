/// BFW: BF with the weight gradient split off. W fills the time in which neither B nor F is ready;
/// after a W, a new round begins. Source: arXiv 2605.18750, Alg. BFW.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class bfw final : public round_policy {
 public:
  explicit bfw(const pipeline_shape& shape) : round_policy(shape, task_kind::backward) {}

  std::string_view name() const override { return "bfw"; }
  lane_order order(const stage_view&) const override {
    return backward_ran_ ? forward_then_backward() : backward_then_forward();
  }
  void reset() override { backward_ran_ = false; }
  void launched(const task& t) override { backward_ran_ = is_backward(t.kind); }
  void waited() override { backward_ran_ = false; }

 private:
  bool backward_ran_ = false;
};

}  // namespace

std::unique_ptr<policy> make_bfw(const pipeline_shape& shape, stage_id) {
  return std::make_unique<bfw>(shape);
}

}  // namespace rrfp::policies
