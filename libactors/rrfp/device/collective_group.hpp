/// Adapts the collectives of libtp_coord to the rank_group that operators use.
#pragma once

#include <memory>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::actors {

class collective_watch;

/// Tensors must be in the memory that the collective takes. Keep `member` and call its abort() when
/// the run ends early: this releases a compute thread that waits for other ranks. `watch` is told
/// of every collective; it may be null.
std::shared_ptr<compute::rank_group> make_collective_group(
    std::shared_ptr<tp_coord::collective> member,
    std::shared_ptr<collective_watch> watch = nullptr);

}  // namespace rrfp::actors
