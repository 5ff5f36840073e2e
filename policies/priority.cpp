/// F-priority and B-priority: run a task of one direction whenever one is ready, one of the other
/// only if none is. Source: arXiv 2605.18750, two of the hints compared with BF.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class priority final : public round_policy {
 public:
  priority(const pipeline_shape& shape, bool forward)
      : round_policy(shape, task_kind::backward_weight), forward_(forward) {}

  std::string_view name() const override { return forward_ ? "f_priority" : "b_priority"; }
  lane_order order(const stage_view&) const override {
    return forward_ ? forward_then_backward() : backward_then_forward();
  }

 private:
  const bool forward_;  ///< goes first
};

}  // namespace

std::unique_ptr<policy> make_f_priority(const pipeline_shape& shape, stage_id) {
  return std::make_unique<priority>(shape, true);
}

std::unique_ptr<policy> make_b_priority(const pipeline_shape& shape, stage_id) {
  return std::make_unique<priority>(shape, false);
}

}  // namespace rrfp::policies
