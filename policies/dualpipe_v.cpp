/// DualPipeV: DualPipe without its second copy of the parameters. Source: DeepSeek's DualPipe
/// (arXiv 2412.19437), cut in half along its symmetry.
///
/// DualPipe feeds P ranks from both ends with m/2 microbatches each; rank r and rank P-1-r do the
/// same work mirrored. Folding one half onto the other gives p = P/2 stages with two chunks each
/// (placement v), and every microbatch takes the same path, there and back. So P is always even,
/// and DualPipe's condition m >= 2P becomes m >= 2p.
///
/// The main part runs an F and the BW of another microbatch as a pair whose communication and
/// computation overlap; here the pair is written as two tasks, F first.
#include <rrfp/policies/catalog.hpp>

namespace rrfp::policies {

void dualpipe_v(const pipeline_shape& shape, std::uint32_t r, sequence_builder& order) {
  const auto p = shape.stages;
  const auto m = shape.microbatches;
  constexpr auto c0 = first_chunk;
  constexpr auto c1 = second_chunk;
  const auto behind = p - 1 - r;
  for (std::uint32_t i = 0; i < 2 * behind; ++i) order.forward(c0);
  for (std::uint32_t i = 0; i < r + 1; ++i) {
    order.forward(c0);
    order.forward(c1);
  }
  for (std::uint32_t i = 0; i < behind; ++i) {
    order.backward(c1);
    order.weight();
    order.forward(c1);
  }
  for (std::uint32_t i = 0; i < m - 2 * p + r + 1; ++i) {
    order.forward(c0);
    order.backward_weight(c1);
    order.forward(c1);
    order.backward_weight(c0);
  }
  for (std::uint32_t i = 0; i < behind; ++i) {
    order.backward_weight(c1);
    order.forward(c1);
    order.backward_weight(c0);
  }
  // W is split off starting with the (r+1)th backward of these 2(r+1), so that r+1 of them remain
  // for the end; for odd r+1 the switch falls between the two chunks of a microbatch.
  std::uint32_t fused_left = r + 1;
  const auto backward_fused_first = [&](chunk_id chunk) {
    if (fused_left == 0) return order.backward(chunk);
    --fused_left;
    order.backward_weight(chunk);
  };
  for (std::uint32_t i = 0; i < r + 1; ++i) {
    backward_fused_first(c1);
    backward_fused_first(c0);
  }
  for (std::uint32_t i = 0; i < behind; ++i) {
    order.weight();
    order.backward(c0);
  }
  order.remaining_weights();
}

}  // namespace rrfp::policies
