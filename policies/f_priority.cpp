/// F-priority: run a forward whenever one is ready, a backward only if none is. Source: arXiv
/// 2605.18750, one of the hints compared with BF.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class f_priority final : public round_policy {
 public:
  explicit f_priority(const pipeline_shape& shape)
      : round_policy(shape, task_kind::backward_weight) {}

  std::string_view name() const override { return "f_priority"; }
  lane_order order(const stage_view&) const override { return forward_then_backward(); }
};

}  // namespace

std::unique_ptr<policy> make_f_priority(const pipeline_shape& shape, stage_id) {
  return std::make_unique<f_priority>(shape);
}

}  // namespace rrfp::policies
