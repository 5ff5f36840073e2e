/// BFW+: BFW with an order that depends on the place of the stage and on its slots, and W in
/// pieces.
///
/// - A ready F that waits for a slot stops the stages behind it, so W, which frees slots, goes
/// first.
/// - Stage 0 feeds the pipeline, and nobody waits for its B, so F goes first.
/// - A stage that has fewer microbatches between F and B than stages behind it is still filling the
///   pipeline: F goes first.
/// - The last stage has its gradient at once: B goes first, so that the backward path starts early.
/// - Elsewhere B and F alternate, as in BFW. With several chunks also on the first stage and on the
///   last one: others wait for the B of the one and for the F of the other.
/// - W is divided: a B that arrives waits for a piece, not for a whole W.
/// - F takes the larger chunk first.
///
/// Found by simulation; bench/policies.bench.cpp measures it against BFW.
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/round_policy.hpp>

namespace rrfp::policies {

namespace {

class bfw_plus final : public round_policy {
 public:
  bfw_plus(const pipeline_shape& shape, stage_id stage)
      : round_policy(shape, task_kind::backward, forward_first::larger_chunk),
        is_first_(shape.chunks == 1 && stage.value() == 0),
        is_last_(shape.chunks == 1 && stage.value() + 1 == shape.stages),
        fill_(shape.chunks * (shape.stages - stage.value())) {}

  std::string_view name() const override { return "bfw_plus"; }
  std::uint32_t weight_pieces() const override { return 4; }

  lane_order order(const stage_view& now) const override {
    if (now.forward_blocked) return {{weight_lane, backward_lane, forward_lane}, 3};
    if (is_first_ || in_flight_ < fill_) return forward_then_backward();
    if (is_last_ || !backward_ran_) return backward_then_forward();
    return forward_then_backward();
  }
  void reset() override {
    in_flight_ = 0;
    backward_ran_ = false;
  }
  void launched(const task& t) override {
    backward_ran_ = is_backward(t.kind);
    if (t.kind == task_kind::forward) ++in_flight_;
    if (is_backward(t.kind)) --in_flight_;
  }
  void waited() override { backward_ran_ = false; }

 private:
  const bool is_first_;
  const bool is_last_;
  const std::uint32_t fill_;
  std::uint32_t in_flight_ = 0;  ///< F launched minus B launched
  bool backward_ran_ = false;
};

}  // namespace

std::unique_ptr<policy> make_bfw_plus(const pipeline_shape& shape, stage_id stage) {
  return std::make_unique<bfw_plus>(shape, stage);
}

}  // namespace rrfp::policies
