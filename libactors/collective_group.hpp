/// The collectives of libtp_coord as the rank_group of the operators.
#pragma once

#include <memory>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::actors {

/// Tensors are where the collective works, or are copied to the host and back. Keep `member`, and
/// call its abort() when the run is given up: that releases a compute thread that waits for other
/// ranks.
std::shared_ptr<compute::rank_group> make_collective_group(
    std::shared_ptr<tp_coord::collective> member);

}  // namespace rrfp::actors
