/// FB: a round runs at most one ready F, then at most one ready B. It differs from BF only if a
/// round begins with both directions ready, that is after a wait. Source: arXiv 2605.18750, one of
/// the hints compared with BF.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class fb final : public round_policy {
 public:
  explicit fb(const pipeline_shape& shape) : round_policy(shape, task_kind::backward_weight) {}

  std::string_view name() const override { return "fb"; }
  lane_order order(const stage_view&) const override {
    return forward_ran_ ? backward_then_forward() : forward_then_backward();
  }
  void reset() override { forward_ran_ = false; }
  void launched(const task& t) override { forward_ran_ = t.kind == task_kind::forward; }
  void waited() override { forward_ran_ = false; }

 private:
  bool forward_ran_ = false;
};

}  // namespace

std::unique_ptr<policy> make_fb(const pipeline_shape& shape, stage_id) {
  return std::make_unique<fb>(shape);
}

}  // namespace rrfp::policies
