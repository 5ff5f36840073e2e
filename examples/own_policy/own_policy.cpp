// A policy of your own in a shared library. B goes first. W, which frees a slot, goes before F only
// while all F that are ready wait for a slot.
//
// Built outside of rrfp's tree, against the installed package (CMakeLists.txt beside this file),
// and then used by any program of rrfp: --set dispatch.policy=lib:own_policy.so
#include <memory>
#include <string_view>

#include <rrfp/policies/policy_library.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace {

class slots_first final : public rrfp::policies::round_policy {
 public:
  explicit slots_first(const rrfp::pipeline_shape& shape)
      : round_policy(shape, rrfp::task_kind::backward) {}

  std::string_view name() const override { return "slots_first"; }
  rrfp::lane_order order(const rrfp::stage_view& now) const override {
    if (now.forward_blocked) return {{backward_lane, weight_lane, forward_lane}, 3};
    return backward_then_forward();
  }
};

std::unique_ptr<rrfp::policy> make(const rrfp::pipeline_shape& shape, rrfp::stage_id) {
  return std::make_unique<slots_first>(shape);
}

}  // namespace

RRFP_POLICY_LIBRARY(make);
