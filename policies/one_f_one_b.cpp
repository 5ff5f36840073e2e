/// 1F1B: one F for each later stage, then F and BW alternately, then the remaining BW.
/// Source: arXiv 1806.03377 (PipeDream), flushed at the end of the step.
///
/// Has GPipe's idle time, with min(p-s, m) microbatches held on stage s.
#include <algorithm>

#include <rrfp/policies/catalog.hpp>

namespace rrfp::policies {

void one_f_one_b(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order) {
  const auto m = shape.microbatches;
  const auto warm_up = std::min(shape.stages - 1 - s, m);
  for (std::uint32_t i = 0; i < warm_up; ++i) order.forward();
  for (std::uint32_t i = warm_up; i < m; ++i) {
    order.forward();
    order.backward_weight();
  }
  for (std::uint32_t i = 0; i < warm_up; ++i) order.backward_weight();
}

}  // namespace rrfp::policies
