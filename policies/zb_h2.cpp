/// ZB-H2: twice 1F1B's forwards in the ramp-up, so that W fills the whole ramp-down. No idle time
/// at equal costs, for the memory of 2p-1 microbatches. Source: arXiv 2401.10241.
#include <rrfp/policies/catalog.hpp>

namespace rrfp::policies {

void zb_h2(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order) {
  const auto p = shape.stages;
  const auto m = shape.microbatches;
  const auto held_max = 2 * p - 1;
  for (std::uint32_t i = 0; i < 2 * (p - s) - 1; ++i) order.forward();
  for (std::uint32_t k = 0; k < m; ++k) {
    order.backward();
    if (k < m - held_max) {
      order.weight();
      order.forward();
    } else if (order.forwards() < m) {
      order.forward();
    } else {
      order.weight();
    }
  }
  order.remaining_weights();
}

}  // namespace rrfp::policies
