#include <rrfp/policies/round_policy.hpp>

#include <rrfp/base/check.hpp>

namespace rrfp::policies {

round_policy::round_policy(const pipeline_shape& shape, task_kind backward, forward_first chunk)
    : chunks_(shape.chunks), backward_(backward), forward_first_(chunk) {
  RRFP_CHECK(is_backward(backward), "backward is B or BW");
}

std::uint32_t round_policy::lane_of(const task& t) const {
  switch (t.kind) {
    case task_kind::forward: return forward_lane;
    case task_kind::backward:
    case task_kind::backward_weight: return backward_lane;
    case task_kind::weight: return weight_lane;
  }
  RRFP_CHECK(false, "unknown kind");
}

std::uint64_t round_policy::rank(const task& t) const {
  const std::uint64_t mb = t.mb.value();
  const std::uint64_t chunk = t.chunk.value();
  const std::uint64_t from_last = chunks_ - 1 - chunk;
  switch (t.kind) {
    case task_kind::forward:
      return (forward_first_ == forward_first::smaller_chunk ? chunk : from_last) << 32 | mb;
    case task_kind::backward:
    case task_kind::backward_weight: return from_last << 32 | mb;
    case task_kind::weight: return mb << 32 | from_last;
  }
  RRFP_CHECK(false, "unknown kind");
}

}  // namespace rrfp::policies
