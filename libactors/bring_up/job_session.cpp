#include <rrfp/actors/job_session.hpp>

#include <fmt/format.h>

#include <rrfp/accelerator/assignment.hpp>
#include <rrfp/accelerator/load.hpp>
#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/base/units.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/compute/first_line.hpp>
#include <rrfp/compute/model.hpp>
#include <rrfp/compute/pretrained.hpp>
#include <rrfp/data/source.hpp>
#include <rrfp/weather/weather.hpp>

#include "held_out.hpp"
#include "microbatch_sizes.hpp"

namespace rrfp::actors {

namespace {

using shared_costs = std::shared_ptr<const simulate::stage_costs>;

/// The same random and given delays as in the simulator: the time that a task or a message takes
/// beyond its nominal cost, times `scale`.
injected_delays delays_of(const job::job& j, const shared_costs& costs, double scale) {
  injected_delays delays;
  const bool given = !j.delays.file.empty();
  if (given || weather::disturbs_tasks(j.jitter)) {
    const auto nominal = std::make_shared<const simulate::stage_costs>(costs->undisturbed());
    delays.compute = [costs, nominal, scale](step_id step, stage_id stage, rank_id rank,
                                             const task& t) {
      return scale * milliseconds(costs->compute_of_rank(step, stage, rank, t) -
                                  nominal->compute(step, stage, t));
    };
  }
  if (given || weather::disturbs_messages(j.jitter) || j.cost.link_ms > 0 || costs->has_bytes())
    delays.link = [costs, scale](step_id step, virtual_stage_id to, rank_id rank, const task& t) {
      return scale * milliseconds(costs->travel(step, to, rank, t));
    };
  if (j.jitter.loss_probability > 0 || j.jitter.double_probability > 0) {
    delays.fate = [costs](step_id step, virtual_stage_id to, rank_id rank, const task& t,
                          std::uint32_t attempt) {
      const auto delivery = costs->delivery_of(step, to, rank, t);
      return attempt_fate{attempt < delivery.losses,
                          attempt == delivery.losses && delivery.duplicated};
    };
    delays.resend_ms = scale * j.jitter.resend_ms;
  }
  return delays;
}

emulated_device emulation_of(const job::job& j, const simulate::stage_costs& costs, double scale) {
  emulated_device device;
  const auto nominal = std::make_shared<const simulate::stage_costs>(costs.undisturbed());
  device.task_ms = [nominal, scale](step_id step, stage_id stage, rank_id, const task& t) {
    return scale * milliseconds(nominal->compute(step, stage, t));
  };
  device.tokens = std::int64_t{j.data.microbatch_size} * j.data.sequence_length;
  device.activation_bytes =
      j.device.message_bytes > 0
          ? static_cast<std::int64_t>(j.device.message_bytes)
          : device.tokens * j.model.hidden * static_cast<std::int64_t>(sizeof(float));
  return device;
}

result<accelerated_devices> accelerated_devices_of(const job::job& j) {
  auto platform = accelerator::load_cuda(j.cuda.deterministic);
  if (!platform)
    return job::blame(j, "device.kind", fmt::format("\"cuda\": {}", platform.message()));
  const auto present = static_cast<std::uint32_t>((*platform)->devices().size());
  auto use = accelerator::choose_devices(j.cuda.gpus, present);
  if (!use) return job::blame(j, "device.gpus", use.message());
  return accelerated_devices{std::move(*platform), std::move(*use), j.cuda.deterministic,
                             j.cuda.collectives};
}

result<plan::dispatch_plan> dispatch_of(const job::job& j, const policy_registry& policies) {
  auto made = plan::make_dispatch_plan(j, policies);
  if (!made) return job::blame(j, "dispatch.policy", made.message());
  return made;
}

result<session_setup> setup_for(const job::job& j, const plan::dispatch_plan& dispatch,
                                replica_id replica) {
  auto expected = plan::expected_costs(j, replica);
  if (!expected) return expected.failure();
  const auto costs = std::make_shared<const simulate::stage_costs>(std::move(*expected));
  session_setup setup;
  setup.shape = dispatch.shape;
  setup.ranks = j.pipeline.tp;
  setup.replicas = j.pipeline.replicas;
  setup.strategies = dispatch.strategies;
  setup.expected = std::make_shared<const simulate::stage_costs>(costs->undisturbed());
  setup.blocking_messages = dispatch.blocking_messages;
  setup.lookahead = dispatch.lookahead;
  setup.spin = std::chrono::microseconds{j.run.spin_us};
  setup.limits = dispatch.limits;
  setup.agreement = dispatch.agreement;
  setup.train = j.train;
  setup.recompute = j.pipeline.recompute;
  setup.hang_timeout_s = j.run.hang_timeout_s;
  const bool emulated = j.device.kind == job::device_kind::emulated;
  const auto scale = emulated ? j.device.time_scale : 1.0;
  setup.delays = delays_of(j, costs, scale);
  if (j.device.kind == job::device_kind::cuda) {
    auto found = accelerated_devices_of(j);
    if (!found) return found.failure();
    setup.accelerated = std::move(*found);
  }
  if (!emulated) return setup;
  setup.emulated = emulation_of(j, *costs, scale);
  setup.emulated->gather_ms = scale * dispatch.gather_ms;
  if (costs->has_bytes())
    setup.slot_bytes = [costs, m = setup.shape.microbatches](step_id step, stage_id s,
                                                             microbatch_id mb) {
      return costs->activation_bytes(step, s, microbatch_id{mb.value() % m});
    };
  return setup;
}

}  // namespace

status check_device(const job::job& j) {
  if (j.device.kind != job::device_kind::cuda) return success();
  const auto found = accelerated_devices_of(j);
  if (!found) return found.failure();
  return success();
}

result<std::shared_ptr<const data::source>> data_opener::open(const job::job& j,
                                                              const job::data_options& d,
                                                              const std::string& key,
                                                              opened& last) {
  data::source_config config;
  config.data = d;
  config.seed = j.train.seed;
  config.microbatches = j.pipeline.microbatches * j.pipeline.replicas;
  config.vocabulary = j.model.vocabulary;
  config.patch = j.model.vision.patch;
  config.image_token = j.model.vision.image_token;
  if (last.source != nullptr && config == last.config) return last.source;
  auto source = data::open_source(config);
  if (!source) return job::blame(j, key, source.message());
  last = {std::move(config), std::move(*source)};
  return last.source;
}

result<job_data> data_opener::open(const job::job& j) {
  job_data data;
  if (j.device.kind == job::device_kind::emulated) return data;
  auto training = open(j, j.data, std::string{data::key_of(j.data)}, training_);
  if (!training) return training.failure();
  data.training = std::move(*training);
  if (const auto d = job::held_out_data(j)) {
    const auto kind = data::key_of(*d).substr(std::string_view{"data."}.size());
    auto held_out = open(j, *d, "eval." + std::string{kind}, held_out_);
    if (!held_out) return held_out.failure();
    data.held_out = std::move(*held_out);
  }
  return data;
}

status check_order_fits(const job::job& j, const plan::dispatch_plan& dispatch) {
  if (j.dispatch.mode == dispatch_mode::ready || j.dispatch.slot_bytes == 0) return success();
  const auto chunks =
      compute::estimate(j.model, compute::expected_layout(j.model, j.data), job::layers_of_parts(j),
                        j.pipeline.tp, j.pipeline.recompute);
  const auto costs = plan::nominal_costs(j);
  auto simulation = plan::simulation_of(dispatch, costs, 1);
  if (j.device.kind != job::device_kind::emulated || !costs.has_bytes())
    simulation.slot_bytes = [&](step_id, stage_id s, microbatch_id) {
      return compute::slot_bytes(chunks, dispatch.shape, s);
    };
  const auto completed = simulate::run(simulation, costs);
  if (completed) return success();
  return job::blame(j, "dispatch.slot_bytes",
                    fmt::format("too small for the sequence of policy {}: {}",
                                dispatch.policies->name(), completed.message()));
}

result<session_setup> make_setup_without_model(const job::job& j, const policy_registry& policies,
                                               replica_id replica) {
  const auto dispatch = dispatch_of(j, policies);
  if (!dispatch) return dispatch.failure();
  return setup_for(j, *dispatch, replica);
}

result<session_setup> make_session_setup(const job::job& j, const policy_registry& policies,
                                         const job_data& data) {
  const auto dispatch = dispatch_of(j, policies);
  if (!dispatch) return dispatch.failure();
  if (auto fits = check_order_fits(j, *dispatch); !fits) return fits.failure();
  auto made = setup_for(j, *dispatch, replica_id{0});
  if (!made) return made;
  auto& setup = *made;
  if (data.training != nullptr) {
    setup.data = admitted(data.training, j, dispatch->shape);
    if (data.held_out != nullptr) {
      setup.data = with_held_out(setup.data, data.held_out, j.eval.batches);
      setup.evaluation = {j.eval.every, j.eval.batches};
    }
    setup.expected = times_by_size(setup.data, j, dispatch->shape);
  }
  const auto cut = job::layers_of_parts(j);
  // If bytes are limited, count the bytes of each microbatch, not of the expected layout.
  if (data.training != nullptr && j.dispatch.slot_bytes != 0) {
    setup.slot_bytes = [model = j.model, pipeline = j.pipeline, shape = dispatch->shape, cut,
                        sized = setup.data](step_id step, stage_id s, microbatch_id mb) {
      const auto sizes =
          compute::estimate(model, sized->layout(step, mb), cut, pipeline.tp, pipeline.recompute);
      return compute::slot_bytes(sizes, shape, s);
    };
  } else if (!setup.slot_bytes) {
    const auto chunks = compute::estimate(j.model, compute::expected_layout(j.model, j.data), cut,
                                          j.pipeline.tp, j.pipeline.recompute);
    setup.slot_bytes = [chunks, shape = dispatch->shape](step_id, stage_id s, microbatch_id) {
      return compute::slot_bytes(chunks, shape, s);
    };
  }
  std::shared_ptr<const safetensors::collection> weights;
  if (!j.model.pretrained.empty() && !setup.emulated) {
    auto opened = safetensors::collection::open(j.model.pretrained);
    if (!opened) return job::blame(j, "model.pretrained", opened.message());
    if (auto fits = compute::check_pretrained(j.model, *opened); !fits)
      return job::blame(j, "model.pretrained", fits.message());
    weights = std::make_shared<const safetensors::collection>(std::move(*opened));
  }
  setup.make_chunk = [model = j.model, cut, seed = j.train.seed, weights](
                         virtual_stage_id vs, std::shared_ptr<compute::rank_group> group)
      -> result<std::unique_ptr<compute::stage_module>> {
    auto chunk =
        compute::make_model_chunk(model, compute::layers_of(cut, vs), seed, std::move(group));
    if (!chunk || weights == nullptr) return chunk;
    if (auto loaded = compute::load_pretrained(**chunk, *weights); !loaded) return loaded.failure();
    return chunk;
  };
  setup.checkpoint = checkpoint_setup_of(j, identity_of(j, data.training.get(), weights.get()));
  return made;
}

result<std::unique_ptr<session>> open_session(const job::job& j, session_setup setup,
                                              const job_node& node, std::uint32_t number) {
  std::optional<cluster> in_cluster;
  if (node.members != nullptr) {
    auto places = plan::node_places::make(j, node.members->nodes());
    if (!places) return places.failure();
    in_cluster = cluster{node.members, std::move(*places), j.transport, node.start, number};
  }
  auto opened = [&]() -> result<std::unique_ptr<session>> {
    try {
      return session::open(std::move(setup), std::move(in_cluster));
    } catch (const std::exception& e) {
      return error{compute::first_line_of(e), error_kind::failed};
    }
  }();
  if (node.members != nullptr) {
    const auto all = agree_on(*node.members, opened ? success() : status{opened.failure()});
    if (!all) return all.failure();
    if (auto restored = (*opened)->check_restored(); !restored) return restored.failure();
  }
  return opened;
}

}  // namespace rrfp::actors
