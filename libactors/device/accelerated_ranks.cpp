#include "accelerated_ranks.hpp"

#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace rrfp::actors {

namespace {

/// How long the poller spins after an event before it sleeps between polls.
constexpr std::chrono::microseconds poll_spin{50};
/// Pinned memory kept for the next messages: pinning costs more than the copy.
constexpr std::uint64_t pinned_cache_bytes = std::uint64_t{1} << 30;

slab_memory pinned(const std::shared_ptr<accelerator::platform>& platform) {
  return {[platform](std::size_t bytes) { return platform->allocate_pinned(bytes); },
          [platform](void* memory) { platform->free_pinned(memory); }};
}

/// Debug builds compare the fingerprints of NCCL calls; host groups do so in every build.
#ifdef NDEBUG
constexpr bool compare_calls = false;
#else
constexpr bool compare_calls = true;
#endif

/// NCCL (2.30 and later) lets ranks share a device only with this setting.
bool ranks_may_share_device() {
  const auto* const set = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return set != nullptr && std::string_view{set} == "1";
}

}  // namespace

accelerated_ranks::accelerated_ranks(const session_setup& setup, std::chrono::milliseconds limit)
    : devices_(*setup.accelerated),
      limit_(limit),
      spin_(setup.spin),
      measured_(setup.trace != nullptr),
      poller_(std::make_shared<accelerator::event_poller>(poll_spin)),
      slabs_(ucx::slab_pool::make(pinned_cache_bytes, pinned(devices_.platform))) {}

result<std::shared_ptr<accelerated_ranks>> accelerated_ranks::open(
    const session_setup& setup, const std::vector<rank_address>& hosted,
    const accelerator::machine_share& share, std::chrono::milliseconds limit) {
  std::shared_ptr<accelerated_ranks> made{new accelerated_ranks{setup, limit}};
  if (auto assigned = made->assign(setup, hosted, share); !assigned) return assigned.failure();
  const bool crowded = share.processes > setup.accelerated->use.size();
  if (auto chosen = made->choose_collectives(setup, crowded); !chosen) return chosen.failure();
  return made;
}

status accelerated_ranks::assign(const session_setup& setup,
                                 const std::vector<rank_address>& hosted,
                                 const accelerator::machine_share& share) {
  const auto own = accelerator::devices_of(setup.accelerated->use, share);
  // Tensor-parallel ranks of one process must not share a device: autograd runs all backwards of a
  // device on one thread, where a rank that waits for another rank would wait for ever.
  const bool alone = setup.ranks > 1;
  const auto assigned = accelerator::assign_devices(hosted.size(), own, alone);
  if (!assigned) return within("device.gpus", assigned.failure());
  for (std::size_t i = 0; i < hosted.size(); ++i) {
    auto lane = devices_.platform->open_lane((*assigned)[i]);
    if (!lane) return lane.failure();
    lanes_[hosted[i]] = std::move(*lane);
  }
  return success();
}

const rank_address* accelerated_ranks::sharing() const {
  std::set<int> seen;
  for (const auto& [rank, lane] : lanes_)
    if (!seen.insert(lane->device().index()).second) return &rank;
  return nullptr;
}

status accelerated_ranks::choose_collectives(const session_setup& setup, bool crowded) {
  const auto how = setup.accelerated->collectives;
  stages_on_device_ = replicas_on_device_ = how != job::collectives_kind::host;
  if (crowded && stages_on_device_ && !ranks_may_share_device()) {
    if (how == job::collectives_kind::nccl && (setup.ranks > 1 || setup.replicas > 1))
      return error{
          "device.collectives: \"nccl\" expects a device for each process of this machine, but "
          "there are fewer: use more devices, fewer nodes a machine, or \"host\""};
    stages_on_device_ = replicas_on_device_ = false;
    return success();
  }
  if (!replicas_on_device_ || setup.replicas == 1 || ranks_may_share_device()) return success();
  // Kernels of several groups on one device can deadlock: each may wait for the other.
  const auto* const shared = sharing();
  if (shared == nullptr) return success();
  if (how == job::collectives_kind::nccl)
    return error{
        fmt::format("device.collectives: \"nccl\" with replicas expects a device for each rank, "
                    "but {} of stage "
                    "{} is shared: use more devices, fewer stages or replicas a node, or "
                    "\"host\"",
                    device_of(*shared).str(), shared->stage.value())};
  replicas_on_device_ = false;
  return success();
}

rank_collectives accelerated_ranks::join(rank_address rank, const rank_collectives& groups) const {
  const auto on_device = [&](const std::shared_ptr<tp_coord::collective>& group, bool wanted) {
    if (group == nullptr || !wanted) return group;
    return devices_.platform->make_collective(group, lanes_.at(rank),
                                              {limit_, devices_.deterministic, compare_calls});
  };
  return {on_device(groups.stage, stages_on_device_),
          on_device(groups.replicas, replicas_on_device_)};
}

std::unique_ptr<device> accelerated_ranks::make_device(std::string name, rank_address rank) const {
  return std::make_unique<accelerated_device>(
      std::move(name), accelerated_parts{lanes_.at(rank), poller_, slabs_, measured_}, spin_);
}

slab_memory accelerated_ranks::pinned_memory() const { return pinned(devices_.platform); }

at::Tensor accelerated_ranks::make_receive_buffer(rank_address rank, at::IntArrayRef shape,
                                                  at::ScalarType type) const {
  const auto lane = lanes_.find(rank);
  if (lane == lanes_.end()) return {};
  auto buffer = lane->second->make_receive_buffer(shape, type);
  return buffer ? std::move(*buffer) : at::Tensor{};
}

void accelerated_ranks::enter_thread() const {
  // The next call that needs the device reports its error.
  static_cast<void>(devices_.platform->enter_thread());
}

}  // namespace rrfp::actors
