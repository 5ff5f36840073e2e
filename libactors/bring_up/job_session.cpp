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

/// The costs of each replica, for tasks whose microbatches are numbered over all replicas.
class costs_of_replicas {
 public:
  costs_of_replicas(std::vector<simulate::stage_costs> by_replica, std::uint32_t microbatches)
      : by_replica_(std::move(by_replica)), microbatches_(microbatches) {}

  /// Calls `f(costs, task)` with the costs of the replica and the task as that replica numbers it.
  auto of(task t, auto f) const {
    const auto replica = t.mb.value() / microbatches_ % by_replica_.size();
    t.mb = microbatch_id{t.mb.value() % microbatches_};
    return f(by_replica_[replica], t);
  }
  const simulate::stage_costs& first() const { return by_replica_.front(); }
  costs_of_replicas undisturbed() const {
    std::vector<simulate::stage_costs> all;
    for (const auto& c : by_replica_) all.push_back(c.undisturbed());
    return {std::move(all), microbatches_};
  }

 private:
  std::vector<simulate::stage_costs> by_replica_;
  std::uint32_t microbatches_;
};
using shared_costs = std::shared_ptr<const costs_of_replicas>;

/// The same random and given delays as in the simulator: the time that a task or a message takes
/// beyond its nominal cost, times `scale`.
injected_delays delays_of(const job::job& j, const shared_costs& costs, const shared_costs& nominal,
                          double scale) {
  injected_delays delays;
  const bool given = !j.delays.file.empty();
  if (given || weather::disturbs_tasks(j.jitter)) {
    delays.compute = [costs, nominal, scale](step_id step, stage_id stage, rank_id rank,
                                             const task& numbered) {
      const auto disturbed = costs->of(numbered, [&](const auto& c, const task& t) {
        return c.compute_of_rank(step, stage, rank, t);
      });
      const auto own = nominal->of(
          numbered, [&](const auto& c, const task& t) { return c.compute(step, stage, t); });
      return scale * milliseconds(disturbed - own);
    };
  }
  if (given || weather::disturbs_messages(j.jitter) || j.cost.link_ms > 0 ||
      costs->first().has_bytes())
    delays.link = [costs, scale](step_id step, virtual_stage_id to, rank_id rank,
                                 const task& numbered) {
      return costs->of(numbered, [&](const auto& c, const task& t) {
        return scale * milliseconds(c.travel(step, to, rank, t));
      });
    };
  if (j.jitter.loss_probability > 0 || j.jitter.double_probability > 0) {
    delays.fate = [costs](step_id step, virtual_stage_id to, rank_id rank, const task& numbered,
                          std::uint32_t attempt) {
      const auto delivery = costs->of(
          numbered, [&](const auto& c, const task& t) { return c.delivery_of(step, to, rank, t); });
      return attempt_fate{attempt < delivery.losses,
                          attempt == delivery.losses && delivery.duplicated};
    };
    delays.resend_ms = scale * j.jitter.resend_ms;
  }
  return delays;
}

emulated_device emulation_of(const job::job& j, const shared_costs& nominal, double scale) {
  emulated_device device;
  device.task_ms = [nominal, scale](step_id step, stage_id stage, rank_id, const task& numbered) {
    return nominal->of(numbered, [&](const auto& c, const task& t) {
      return scale * milliseconds(c.compute(step, stage, t));
    });
  };
  device.tokens = std::int64_t{j.data.microbatch_size} * j.data.sequence_length;
  auto bytes = static_cast<std::int64_t>(j.device.message_bytes);
  if (bytes == 0 && nominal->first().has_bytes()) {
    device.message_bytes = [nominal](step_id step, virtual_stage_id to, const task& numbered) {
      return nominal->of(numbered, [&](const auto& c, const task& t) {
        return static_cast<std::int64_t>(c.message_bytes(step, to, t));
      });
    };
    return device;
  }
  if (bytes == 0) bytes = device.tokens * j.model.hidden * std::int64_t{sizeof(float)};
  device.message_bytes = [bytes](step_id, virtual_stage_id, const task&) { return bytes; };
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

result<shared_costs> costs_of(const job::job& j) {
  std::vector<simulate::stage_costs> all;
  for (std::uint32_t r = 0; r < j.pipeline.replicas; ++r) {
    auto expected = plan::expected_costs(j, replica_id{r});
    if (!expected) return expected.failure();
    all.push_back(std::move(*expected));
  }
  return std::make_shared<const costs_of_replicas>(std::move(all), j.pipeline.microbatches);
}

result<session_setup> setup_for(const job::job& j, const plan::dispatch_plan& dispatch) {
  const auto made = costs_of(j);
  if (!made) return made.failure();
  const auto costs = *made;
  const auto nominal = std::make_shared<const costs_of_replicas>(costs->undisturbed());
  session_setup setup;
  setup.shape = dispatch.shape;
  setup.ranks = j.pipeline.tp;
  setup.replicas = j.pipeline.replicas;
  setup.strategies = dispatch.strategies;
  setup.expected = std::make_shared<const simulate::stage_costs>(nominal->first());
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
  setup.delays = delays_of(j, costs, nominal, scale);
  if (j.device.kind == job::device_kind::cuda) {
    auto found = accelerated_devices_of(j);
    if (!found) return found.failure();
    setup.accelerated = std::move(*found);
  }
  if (!emulated) return setup;
  setup.emulated = emulation_of(j, nominal, scale);
  setup.emulated->gather_ms = scale * dispatch.gather_ms;
  if (nominal->first().has_bytes())
    setup.slot_bytes = [nominal](step_id step, stage_id s, microbatch_id mb) {
      return nominal->of({task_kind::forward, mb, chunk_id{0}}, [&](const auto& c, const task& t) {
        return c.activation_bytes(step, s, t.mb);
      });
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

result<session_setup> make_setup_without_model(const job::job& j, const policy_registry& policies) {
  const auto dispatch = dispatch_of(j, policies);
  if (!dispatch) return dispatch.failure();
  return setup_for(j, *dispatch);
}

result<session_setup> make_session_setup(const job::job& j, const policy_registry& policies,
                                         const job_data& data) {
  const auto dispatch = dispatch_of(j, policies);
  if (!dispatch) return dispatch.failure();
  if (auto fits = check_order_fits(j, *dispatch); !fits) return fits.failure();
  auto made = setup_for(j, *dispatch);
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
