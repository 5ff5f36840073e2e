/// ZB-V: the model turns back at the last stage (placement v), so that the loss and the first B are
/// where the last F was, and every stage holds the same amount. No idle time at equal costs, with
/// 1F1B's memory (2p half-size chunks). Source: arXiv 2405.15362; order as in
/// torch.distributed.pipelining.
#include <algorithm>

#include <rrfp/policies/catalog.hpp>

namespace rrfp::policies {

void zb_v(const pipeline_shape& shape, std::uint32_t r, sequence_builder& order) {
  const auto p = shape.stages;
  // The pattern needs 2p-1 microbatches to close; those beyond the step's own are dropped.
  const auto n = std::max(shape.microbatches, 2 * p - 1);
  constexpr auto c0 = first_chunk;
  constexpr auto c1 = second_chunk;
  const auto backward_then_weight = [&](chunk_id chunk) {
    order.backward(chunk);
    order.weight(chunk);
  };
  for (std::uint32_t i = 0; i < 2 * (p - r) - 1; ++i) order.forward(c0);
  for (std::uint32_t i = 0; i < r; ++i) {
    order.forward(c1);
    order.forward(c0);
  }
  for (std::uint32_t i = 0; i < p - r; ++i) {
    order.forward(c1);
    backward_then_weight(c1);
  }
  while (order.forwards(c1) < order.forwards(c0) || order.forwards(c0) < n) {
    if (order.forwards(c0) < n) order.forward(c0);
    backward_then_weight(c0);
    order.forward(c1);
    backward_then_weight(c1);
  }
  for (std::uint32_t i = 0; i < r; ++i) {
    order.backward(c0);
    order.backward(c1);
  }
  for (std::uint32_t i = 0; i < p - r; ++i) backward_then_weight(c0);
  for (std::uint32_t i = 0; i < r; ++i) order.weight(c1);
  order.remaining_weights();
}

}  // namespace rrfp::policies
