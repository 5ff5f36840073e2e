/// Adapts the collectives of libtp_coord to the rank_group that operators use.
#pragma once

#include <memory>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::actors {

/// Notified of every collective of one member, on the calling thread.
class collective_observer {
 public:
  collective_observer() = default;
  collective_observer(const collective_observer&) = delete;
  collective_observer& operator=(const collective_observer&) = delete;
  virtual ~collective_observer() = default;

  virtual void enter(const tp_coord::fingerprint& print) = 0;
  virtual void leave() = 0;
};

/// Tensors in other memory than the collective's are copied to the host and back. Keep `member` and
/// call its abort() when the run ends early: this releases a compute thread that waits for other
/// ranks. `observer` may be null.
std::shared_ptr<compute::rank_group> make_collective_group(
    std::shared_ptr<tp_coord::collective> member,
    std::shared_ptr<collective_observer> observer = nullptr);

}  // namespace rrfp::actors
