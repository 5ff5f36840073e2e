/// The ranks of this process on devices with their own memory: which rank owns which device, what
/// all ranks share, and how they sum.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include <rrfp/accelerator/assignment.hpp>
#include <rrfp/accelerator/event_poller.hpp>
#include <rrfp/device/rank_devices.hpp>
#include <rrfp/torch_actors/torch_model.hpp>

#include "accelerated_device.hpp"

namespace rrfp::actors {

class accelerated_ranks final : public rank_devices,
                                public std::enable_shared_from_this<accelerated_ranks> {
 public:
  /// Error: more tensor-parallel ranks than devices, a device that creates no stream, or, with
  /// device.collectives = "nccl" and replicas, a device that several ranks share.
  static result<std::shared_ptr<rank_devices>> open(const accelerated_devices& devices,
                                                    const session_setup& setup,
                                                    const device_request& request);

  at::Device device_of(rank_address rank) const { return lanes_.at(rank)->device(); }
  rank_collectives join(rank_address rank, const rank_collectives& groups) const override;
  std::unique_ptr<device> make_device(std::string name, rank_address rank) const override;
  /// Pinned host memory, which devices access directly, and memory of the device of a rank.
  arrival_memory memory_of_arrivals() const override;

 private:
  accelerated_ranks(const session_setup& setup, const accelerated_devices& devices,
                    std::chrono::milliseconds limit);
  status assign(const session_setup& setup, const device_request& request);
  /// Undefined: there is none left.
  tensor_buffer make_receive_buffer(rank_address rank, std::span<const std::int64_t> sizes,
                                    dtype type) const;
  /// `crowded`: several processes of this machine share a device.
  status choose_collectives(const session_setup& setup, bool crowded);

  const accelerated_devices devices_;
  const std::chrono::milliseconds limit_;
  const std::chrono::microseconds spin_;
  const bool measured_;
  const std::shared_ptr<accelerator::event_poller> poller_;
  const std::shared_ptr<ucx::slab_pool> slabs_;
  std::map<rank_address, std::shared_ptr<accelerator::lane>> lanes_;
  bool stages_on_device_ = true;
  bool replicas_on_device_ = true;
};

}  // namespace rrfp::actors
