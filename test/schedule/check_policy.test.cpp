/// A policy that breaks its contract is refused before a core uses it.
#include <string>

#include <catch2/catch.hpp>

#include <rrfp/core/check_policy.hpp>

namespace rrfp {
namespace {

/// Satisfies the contract except for what a test changes.
class loose_policy final : public policy {
 public:
  std::string_view name() const override { return "loose"; }
  task_kind backward_of(microbatch_id mb, chunk_id) const override {
    return mb == microbatch_id{1} ? odd : task_kind::backward;
  }
  std::uint32_t lanes() const override { return lane_count; }
  std::uint32_t lane_of(const task& t) const override {
    return t.kind == task_kind::weight ? lane_of_weights : 0;
  }
  std::uint64_t rank(const task& t) const override { return t.mb.value(); }
  lane_order order(const stage_view&) const override { return {}; }

  task_kind odd = task_kind::backward;
  std::uint32_t lane_count = 1;
  std::uint32_t lane_of_weights = 0;
};

std::string refused(const loose_policy& p, dispatch_mode mode = dispatch_mode::ready) {
  const auto checked = check_policy(p, {2, 1, 3, placement::linear}, mode);
  return checked ? "" : checked.message();
}

}  // namespace

TEST_CASE("every part of a policy's contract is checked, and a violation is named") {
  loose_policy p;
  CHECK(refused(p).empty());
  CHECK(refused(p, dispatch_mode::in_order).empty());
  p.odd = task_kind::backward_weight;
  CHECK(refused(p).empty());
  p.odd = task_kind::forward;
  CHECK(refused(p) == "policy 'loose': backward_of(1, 0): expected B or BW, got F");
  p.odd = task_kind::backward;
  p.lane_of_weights = 1;
  CHECK(refused(p) == "policy 'loose': lane_of(W0): expected 0 to 0, got 1");
  p.lane_count = 2;
  CHECK(refused(p).empty());
  CHECK(refused(p, dispatch_mode::in_order) ==
        "policy 'loose': lanes(): expected 1 for in-order dispatch, got 2");
  p.lane_count = 0;
  CHECK(refused(p) == "policy 'loose': lanes(): expected 1 to 4, got 0");
  p.lane_count = 5;
  CHECK(refused(p) == "policy 'loose': lanes(): expected 1 to 4, got 5");
}

}  // namespace rrfp
