/// ZB-H1: 1F1B with W split off and moved into the ramp-down, at 1F1B's memory (p microbatches,
/// here on every stage). Source: arXiv 2401.10241.
#include <algorithm>

#include <rrfp/policies/catalog.hpp>

namespace rrfp::policies {

void zb_h1(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order) {
  const auto m = shape.microbatches;
  const auto warm_up = std::min(shape.stages - s, m);
  for (std::uint32_t i = 0; i < warm_up; ++i) order.forward();
  for (std::uint32_t k = 0; k < m; ++k) {
    order.backward();
    // W lags by s, because a later stage has memory for s more microbatches.
    if (k >= s) order.weight();
    if (order.forwards() < m) order.forward();
  }
  order.remaining_weights();
}

}  // namespace rrfp::policies
