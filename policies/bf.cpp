/// BF: a round runs at most one ready B, then at most one ready F. Source: arXiv 2605.18750,
/// Alg. 1.
///
/// If one direction has nothing ready, the round ends early and the next one begins. The only state
/// is therefore whether this round's B has run.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class bf final : public round_policy {
 public:
  explicit bf(const pipeline_shape& shape) : round_policy(shape, task_kind::backward_weight) {}

  std::string_view name() const override { return "bf"; }
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

std::unique_ptr<policy> make_bf(const pipeline_shape& shape, stage_id) {
  return std::make_unique<bf>(shape);
}

}  // namespace rrfp::policies
