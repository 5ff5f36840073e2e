#include "accelerated_ranks.hpp"

#include <rrfp/torch/tensors.hpp>

#include <algorithm>
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

accelerated_ranks::accelerated_ranks(const session_setup& setup, const accelerated_devices& devices,
                                     std::chrono::milliseconds limit)
    : devices_(devices),
      limit_(limit),
      spin_(setup.spin),
      measured_(setup.trace != nullptr),
      poller_(std::make_shared<accelerator::event_poller>(poll_spin)),
      slabs_(ucx::slab_pool::make(pinned_cache_bytes, pinned(devices_.platform))) {}

result<std::shared_ptr<rank_devices>> accelerated_ranks::open(const accelerated_devices& devices,
                                                              const session_setup& setup,
                                                              const device_request& request) {
  std::shared_ptr<accelerated_ranks> made{new accelerated_ranks{setup, devices, request.limit}};
  if (auto assigned = made->assign(setup, request); !assigned) return assigned.failure();
  const bool crowded = request.processes > devices.use.size();
  if (auto chosen = made->choose_collectives(setup, crowded); !chosen) return chosen.failure();
  return std::shared_ptr<rank_devices>{std::move(made)};
}

status accelerated_ranks::assign(const session_setup& setup, const device_request& request) {
  const auto& hosted = request.hosted;
  const auto own = accelerator::devices_of(devices_.use, request.place, request.processes);
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

status accelerated_ranks::choose_collectives(const session_setup& setup, bool crowded) {
  const auto how = devices_.collectives;
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
  std::set<int> seen;
  const auto shared = std::ranges::find_if(
      lanes_, [&](const auto& one) { return !seen.insert(one.second->device().index()).second; });
  if (shared == lanes_.end()) return success();
  if (how == job::collectives_kind::nccl)
    return error{
        fmt::format("device.collectives: \"nccl\" with replicas expects a device for each rank, "
                    "but {} of stage "
                    "{} is shared: use more devices, fewer stages or replicas a node, or "
                    "\"host\"",
                    shared->second->device().str(), shared->first.stage.value())};
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

arrival_memory accelerated_ranks::memory_of_arrivals() const {
  return {pinned(devices_.platform),
          [self = shared_from_this()](const rank_address& to, std::span<const std::int64_t> sizes,
                                      dtype type) {
            return self->make_receive_buffer(to, sizes, type);
          },
          // The next call that needs the device reports its error.
          [platform = devices_.platform] { static_cast<void>(platform->enter_thread()); }};
}

tensor_buffer accelerated_ranks::make_receive_buffer(rank_address rank,
                                                     std::span<const std::int64_t> sizes,
                                                     dtype type) const {
  const auto lane = lanes_.find(rank);
  const auto scalar = compute::scalar_type_of(type);
  if (lane == lanes_.end() || !scalar) return {};
  auto made = lane->second->make_receive_buffer({sizes.data(), sizes.size()}, *scalar);
  return made ? compute::to_buffer(std::move(*made)) : tensor_buffer{};
}

}  // namespace rrfp::actors
