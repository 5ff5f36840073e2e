/// Interleaved 1F1B: v chunks per stage shorten the ramps by a factor of v. Source: arXiv
/// 2104.04473 (Megatron-LM).
///
/// Microbatches run in groups: a group visits chunk 0, then chunk 1, and so on; BW visits the
/// chunks in reverse order. A group needs p microbatches, the time that its first one takes to
/// return. If p does not divide m, the groups are slightly larger (the rule of
/// torch.distributed.pipelining, here for any m), because a short group would leave stages idle or
/// even be infeasible: with v = 2 and groups of p, a last group of 2..p-3 ends in a cycle of waits.
#include <algorithm>

#include <rrfp/policies/catalog.hpp>

namespace rrfp::policies {

namespace {

/// The sizes of the groups: as many as can hold p microbatches or more, larger groups first.
std::vector<std::uint32_t> group_sizes(const pipeline_shape& shape) {
  const auto groups = std::max(shape.microbatches / shape.stages, 1U);
  std::vector<std::uint32_t> sizes(groups, shape.microbatches / groups);
  for (std::uint32_t g = 0; g < shape.microbatches % groups; ++g) ++sizes[g];
  return sizes;
}

}  // namespace

void interleaved_1f1b(const pipeline_shape& shape, std::uint32_t r, sequence_builder& order) {
  const auto p = shape.stages;
  const auto v = shape.chunks;
  const auto sizes = group_sizes(shape);
  // The chunk of every F, in order. The microbatch is always the next one of that chunk.
  std::vector<chunk_id> table;
  for (const auto size : sizes)
    for (std::uint32_t c = 0; c < v; ++c) table.insert(table.end(), size, chunk_id{c});
  const auto tasks = static_cast<std::uint32_t>(table.size());
  const auto warm_up = std::min(2 * (p - 1 - r) + (v - 1) * sizes[0], tasks);
  const auto turned = [&](std::uint32_t at) { return chunk_id{v - 1 - table[at].value()}; };
  for (std::uint32_t at = 0; at < warm_up; ++at) order.forward(table[at]);
  for (std::uint32_t at = warm_up; at < tasks; ++at) {
    order.forward(table[at]);
    order.backward_weight(turned(at - warm_up));
  }
  for (std::uint32_t at = tasks - warm_up; at < tasks; ++at) order.backward_weight(turned(at));
}

}  // namespace rrfp::policies
