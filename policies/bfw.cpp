/// BF: a round runs at most one ready B, then at most one ready F. Source: arXiv 2605.18750,
/// Alg. 1.
///
/// If one direction has nothing ready, the round ends early and the next one begins. The only state
/// is therefore whether this round's B has run.
///
/// BFW: BF with the weight gradient split off. W fills the time in which neither B nor F is ready;
/// after a W, a new round begins. Source: arXiv 2605.18750, Alg. BFW.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class bf final : public round_policy {
 public:
  bf(std::string_view name, const pipeline_shape& shape, task_kind backward)
      : round_policy(shape, backward), name_(name) {}

  std::string_view name() const override { return name_; }
  lane_order order(const stage_view&) const override {
    return backward_ran_ ? forward_then_backward() : backward_then_forward();
  }
  void reset() override { backward_ran_ = false; }
  void launched(const task& t) override { backward_ran_ = is_backward(t.kind); }
  void waited() override { backward_ran_ = false; }

 private:
  const std::string_view name_;
  bool backward_ran_ = false;
};

}  // namespace

std::unique_ptr<policy> make_bf(const pipeline_shape& shape, stage_id) {
  return std::make_unique<bf>("bf", shape, task_kind::backward_weight);
}

std::unique_ptr<policy> make_bfw(const pipeline_shape& shape, stage_id) {
  return std::make_unique<bf>("bfw", shape, task_kind::backward);
}

}  // namespace rrfp::policies
