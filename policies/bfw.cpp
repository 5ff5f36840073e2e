/// BF: a round runs at most one ready B, then at most one ready F. Source: arXiv 2605.18750,
/// Alg. 1.
///
/// If one direction has nothing ready, the round ends early and the next one begins. The only state
/// is therefore whether this round's B has run.
///
/// FB: the same with F first. It differs from BF only if a round begins with both directions ready,
/// that is after a wait. Source: the same, one of the hints compared with BF.
///
/// BFW: BF with the weight gradient split off. W fills the time in which neither B nor F is ready;
/// after a W, a new round begins. Source: arXiv 2605.18750, Alg. BFW.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class bf final : public round_policy {
 public:
  bf(std::string_view name, const pipeline_shape& shape, task_kind backward,
     bool begins_with_forward = false)
      : round_policy(shape, backward), name_(name), begins_with_forward_(begins_with_forward) {}

  std::string_view name() const override { return name_; }
  lane_order order(const stage_view&) const override {
    return first_ran_ == begins_with_forward_ ? backward_then_forward() : forward_then_backward();
  }
  void reset() override { first_ran_ = false; }
  void launched(const task& t) override {
    first_ran_ = begins_with_forward_ ? t.kind == task_kind::forward : is_backward(t.kind);
  }
  void waited() override { first_ran_ = false; }

 private:
  const std::string_view name_;
  const bool begins_with_forward_;
  bool first_ran_ = false;  ///< in this round
};

}  // namespace

std::unique_ptr<policy> make_bf(const pipeline_shape& shape, stage_id) {
  return std::make_unique<bf>("bf", shape, task_kind::backward_weight);
}

std::unique_ptr<policy> make_fb(const pipeline_shape& shape, stage_id) {
  return std::make_unique<bf>("fb", shape, task_kind::backward_weight, true);
}

std::unique_ptr<policy> make_bfw(const pipeline_shape& shape, stage_id) {
  return std::make_unique<bf>("bfw", shape, task_kind::backward);
}

}  // namespace rrfp::policies
