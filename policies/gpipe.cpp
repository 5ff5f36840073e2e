/// GPipe: every F, then every BW. Source: arXiv 1811.06965.
///
/// Each stage is idle for (p-1)(TF + TBW) and holds all m microbatches.
#include <rrfp/policies/catalog.hpp>

namespace rrfp::policies {

void gpipe(const pipeline_shape& shape, std::uint32_t, sequence_builder& order) {
  for (std::uint32_t i = 0; i < shape.microbatches; ++i) order.forward();
  for (std::uint32_t i = 0; i < shape.microbatches; ++i) order.backward_weight();
}

}  // namespace rrfp::policies
