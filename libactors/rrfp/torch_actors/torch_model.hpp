/// Sessions whose ranks train with libtorch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <rrfp/accelerator/platform.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/torch/batch_source.hpp>
#include <rrfp/torch/optimizer.hpp>
#include <rrfp/torch/stage_module.hpp>

namespace rrfp::actors {

struct torch_model {
  /// Makes a rank's part of a chunk; `group`: the tensor-parallel ranks of its stage, null if
  /// alone.
  std::function<result<std::unique_ptr<compute::stage_module>>(
      virtual_stage_id, std::shared_ptr<compute::rank_group> group)>
      make_chunk;
  /// Microbatches are numbered over all replicas: those of replica d begin at d * m.
  std::shared_ptr<const compute::batch_source> data;
  /// Empty: train.optimizer selects it.
  compute::optimizer_factory make_optimizer = {};
  /// See stage_compute_config.
  bool recompute = false;
};

/// The ranks of the session train `model`.
void train(session_setup& setup, torch_model model);

/// Devices with memory of their own, for the ranks of this machine.
struct accelerated_devices {
  std::shared_ptr<accelerator::platform> platform;
  /// The numbers of the devices to use; see accelerator/assignment.hpp.
  std::vector<std::uint32_t> use;
  /// Sums run in the order of the ranks.
  bool deterministic = true;
  /// How ranks sum: with the devices' library (nccl) or in host memory. Nothing: with the library
  /// if each rank of this process has its own device.
  std::optional<job::collectives_kind> collectives;
};

/// The ranks of the session compute there.
void compute_on(session_setup& setup, accelerated_devices devices);

}  // namespace rrfp::actors
