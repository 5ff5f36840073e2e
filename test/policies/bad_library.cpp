/// A shared library whose policy breaks the rule that FAULT names.
#include <memory>
#include <stdexcept>

#include <rrfp/policies/policy_library.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace {

using namespace rrfp;

enum fault {
  no_symbol,
  other_version,
  make_throws,
  make_returns_null,
  too_many_lanes,
  rank_throws,
  order_throws,
  order_repeats,
  launched_throws,
  no_pieces
};

class faulty final : public policies::round_policy {
 public:
  explicit faulty(const pipeline_shape& shape) : round_policy(shape, task_kind::backward) {}

  std::string_view name() const override { return "faulty"; }
  lane_order order(const stage_view&) const override {
    if (FAULT == order_throws) throw std::out_of_range("no such lane\nand more");
    if (FAULT == order_repeats) return {{0, 0}, 2};
    return backward_then_forward();
  }
  std::uint32_t weight_pieces() const override { return FAULT == no_pieces ? 0 : 1; }
  void launched(const task&) override {
    if (FAULT == launched_throws) throw 7;
  }
};

class unchecked final : public policy {
 public:
  std::string_view name() const override { return "unchecked"; }
  task_kind backward_of(microbatch_id, chunk_id) const override {
    return task_kind::backward_weight;
  }
  std::uint32_t lanes() const override { return FAULT == too_many_lanes ? 9 : 1; }
  std::uint32_t lane_of(const task&) const override { return 0; }
  std::uint64_t rank(const task&) const override { throw std::out_of_range("no such task"); }
  lane_order order(const stage_view&) const override { return {}; }
};

[[maybe_unused]] std::unique_ptr<policy> make(const pipeline_shape& shape, stage_id) {
  if (FAULT == make_throws) throw std::runtime_error("no such shape");
  if (FAULT == make_returns_null) return nullptr;
  if (FAULT == too_many_lanes || FAULT == rank_throws) return std::make_unique<unchecked>();
  return std::make_unique<faulty>(shape);
}

}  // namespace

#if FAULT == 1
extern "C" const rrfp::policies::policy_library rrfp_policy_library;
const rrfp::policies::policy_library rrfp_policy_library{rrfp::policies::policy_library_version + 1,
                                                         nullptr};
#elif FAULT != 0
RRFP_POLICY_LIBRARY(make);
#endif
