#include <rrfp/torch_actors/torch_model.hpp>

#include <utility>

#include <fmt/format.h>

#include <rrfp/torch/stage_compute.hpp>

#include "accelerated_ranks.hpp"

namespace rrfp::actors {

namespace {

result<std::shared_ptr<compute::rank_compute>> make_rank(const torch_model& model,
                                                         const session_setup& setup,
                                                         const rank_place& place) {
  const auto& [stage, rank, replica] = place.address;
  const auto& shape = setup.shape;
  std::vector<std::unique_ptr<compute::stage_module>> chunks;
  for (std::uint32_t c = 0; c < shape.chunks; ++c) {
    auto chunk = model.make_chunk(shape.virtual_stage(stage, chunk_id{c}), place.group);
    if (!chunk) return within(fmt::format("stage {} chunk {}", stage.value(), c), chunk.failure());
    chunks.push_back(std::move(*chunk));
  }
  compute::stage_compute_config config{shape, stage, setup.train, place.group};
  config.replica = replica;
  config.recompute = model.recompute;
  config.make_optimizer = model.make_optimizer;
  if (const auto* devices = dynamic_cast<const accelerated_ranks*>(place.devices))
    config.device = devices->device_of(place.address);
  auto compute = compute::stage_compute::make(config, std::move(chunks), model.data);
  if (!compute) return within(fmt::format("stage {}", stage.value()), compute.failure());
  return std::shared_ptr<compute::rank_compute>{std::move(*compute)};
}

}  // namespace

void train(session_setup& setup, torch_model model) {
  setup.names_parameters = true;
  setup.make_compute = std::bind_front(make_rank, std::move(model));
}

void compute_on(session_setup& setup, accelerated_devices devices) {
  setup.open_devices = std::bind_front(accelerated_ranks::open, std::move(devices));
}

}  // namespace rrfp::actors
