/// B-priority: run a backward whenever one is ready, a forward only if none is. Source: arXiv
/// 2605.18750, one of the hints compared with BF.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class b_priority final : public round_policy {
 public:
  explicit b_priority(const pipeline_shape& shape)
      : round_policy(shape, task_kind::backward_weight) {}

  std::string_view name() const override { return "b_priority"; }
  lane_order order(const stage_view&) const override { return backward_then_forward(); }
};

}  // namespace

std::unique_ptr<policy> make_b_priority(const pipeline_shape& shape, stage_id) {
  return std::make_unique<b_priority>(shape);
}

}  // namespace rrfp::policies
