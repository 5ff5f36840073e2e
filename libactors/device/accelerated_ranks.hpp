/// The ranks of this process on devices with their own memory: which rank owns which device, what
/// all ranks share, and how they sum.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/accelerator/assignment.hpp>
#include <rrfp/accelerator/event_poller.hpp>
#include <rrfp/actors/session.hpp>

#include "accelerated_device.hpp"
#include "rank_groups.hpp"

namespace rrfp::actors {

class accelerated_ranks {
 public:
  /// `hosted`: the ranks of this process, stage by stage. Error: more tensor-parallel ranks than
  /// devices, a device that creates no stream, or, with device.collectives = "nccl" and replicas, a
  /// device that several ranks share.
  static result<std::shared_ptr<accelerated_ranks>> open(const session_setup& setup,
                                                         const std::vector<rank_address>& hosted,
                                                         const accelerator::machine_share& share,
                                                         std::chrono::milliseconds limit);

  at::Device device_of(rank_address rank) const { return lanes_.at(rank)->device(); }
  /// The groups of a rank, with collectives on its device where they are chosen.
  rank_collectives join(rank_address rank, const rank_collectives& groups) const;
  std::unique_ptr<device> make_device(std::string name, rank_address rank) const;
  /// Pinned host memory, which devices access directly.
  slab_memory pinned_memory() const;
  /// On the device of a rank, for what others put there; undefined: there is none left.
  at::Tensor make_receive_buffer(rank_address rank, at::IntArrayRef shape,
                                 at::ScalarType type) const;
  /// For a thread of a library that works with devices.
  void enter_thread() const;

 private:
  accelerated_ranks(const session_setup& setup, std::chrono::milliseconds limit);
  status assign(const session_setup& setup, const std::vector<rank_address>& hosted,
                const accelerator::machine_share& share);
  /// A rank that shares its device with another rank; null if there is none.
  const rank_address* sharing() const;
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
