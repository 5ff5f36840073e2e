/// Identities are distinct types: a microbatch cannot be passed where a stage is expected.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace rrfp {

template <class Tag, class Rep>
class id {
 public:
  using rep = Rep;

  constexpr id() = default;
  constexpr explicit id(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const id&) const = default;

 private:
  Rep value_ = 0;
};

/// One physical position of the pipeline, 0..p-1.
using stage_id = id<struct stage_tag, std::uint32_t>;
/// One of the v model parts that a stage owns, 0..v-1.
using chunk_id = id<struct chunk_tag, std::uint32_t>;
/// The position of a (stage, chunk) along the model, 0..p*v-1.
using virtual_stage_id = id<struct virtual_stage_tag, std::uint32_t>;
/// A microbatch of a step, numbered in the order of admission, 0..m-1.
using microbatch_id = id<struct microbatch_tag, std::uint32_t>;
/// One tensor-parallel member of a stage.
using rank_id = id<struct rank_tag, std::uint32_t>;
/// One data-parallel copy of the whole pipeline.
using replica_id = id<struct replica_tag, std::uint32_t>;
/// One process of a job.
using node_id = id<struct node_tag, std::uint32_t>;
/// The key of an optimizer step, counted from 0, or of an evaluation, counted from 2^52. Users see
/// numbers that count from 1 for each of the two.
using step_id = id<struct step_tag, std::uint64_t>;
/// The number of a launch on its stage, counted from 0 over the lifetime of the stage.
using launch_seq = id<struct launch_tag, std::uint64_t>;

}  // namespace rrfp

template <class Tag, class Rep>
struct std::hash<rrfp::id<Tag, Rep>> {
  std::size_t operator()(rrfp::id<Tag, Rep> x) const noexcept {
    return std::hash<Rep>{}(x.value());
  }
};
