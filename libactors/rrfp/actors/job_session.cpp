#include <rrfp/actors/job_session.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/simulate/conditions.hpp>

namespace rrfp::actors {

namespace {

/// The costs of each replica.
class costs_of_replicas {
 public:
  costs_of_replicas(std::vector<simulate::stage_costs> by_replica, std::uint32_t microbatches)
      : by_replica_(std::move(by_replica)), microbatches_(microbatches) {}

  const simulate::stage_costs& of(replica_id replica) const { return by_replica_[replica.value()]; }
  const simulate::stage_costs& first() const { return by_replica_.front(); }
  /// The task that has costs: those are of as many microbatches as the job has, and further ones of
  /// a step cost as much as these.
  task known(task t) const {
    t.mb = microbatch_id{t.mb.value() % microbatches_};
    return t;
  }
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
  if (given || simulate::disturbs_tasks(j.jitter)) {
    delays.compute = [costs, nominal, scale](step_id step, const rank_address& at, const task& t) {
      const auto known = costs->known(t);
      return scale *
             milliseconds(costs->of(at.replica).compute_of_rank(step, at.stage, at.rank, known) -
                          nominal->of(at.replica).compute(step, at.stage, known));
    };
  }
  if (given || simulate::disturbs_messages(j.jitter) || j.cost.link_ms > 0 ||
      costs->first().has_bytes())
    delays.link = [costs, scale](step_id step, virtual_stage_id to, const rank_address& at,
                                 const task& t) {
      return scale *
             milliseconds(costs->of(at.replica).link_of_rank(step, to, at.rank, costs->known(t)));
    };
  return delays;
}

emulated_device emulation_of(const job::job& j, const shared_costs& nominal, double scale) {
  emulated_device device;
  device.task_ms = [nominal, scale](step_id step, const rank_address& at, const task& t) {
    return scale * milliseconds(nominal->of(at.replica).compute(step, at.stage, nominal->known(t)));
  };
  device.tokens = std::int64_t{j.data.microbatch_size} * j.data.sequence_length;
  auto bytes = static_cast<std::int64_t>(j.device.message_bytes);
  if (bytes == 0 && nominal->first().has_bytes()) {
    device.message_bytes = [nominal](step_id step, replica_id replica, virtual_stage_id to,
                                     const task& t) {
      return static_cast<std::int64_t>(
          nominal->of(replica).message_bytes(step, to, nominal->known(t)));
    };
    return device;
  }
  if (bytes == 0) bytes = device.tokens * j.model.hidden * std::int64_t{sizeof(float)};
  device.message_bytes = [bytes](step_id, replica_id, virtual_stage_id, const task&) {
    return bytes;
  };
  return device;
}

std::vector<compute::chunk_estimate> chunks_of(const job::job& j) {
  return compute::estimate(j.model, compute::expected_layout(j.model, j.data),
                           job::layers_of_parts(j), j.pipeline.tp, j.pipeline.recompute);
}

/// Error: in mode in-order, the sequence of the policy needs more than dispatch.slot_bytes.
status check_order_fits(const job::job& j, const policy_registry& policies) {
  if (j.dispatch.mode == dispatch_mode::ready || j.dispatch.slot_bytes == 0) return success();
  const auto dispatch = job::make_dispatch_plan(j, policies);
  if (!dispatch) return dispatch.failure();
  const auto chunks = chunks_of(j);
  const auto costs = job::nominal_costs(j);
  auto simulation = job::simulation_of(*dispatch, costs, 1);
  if (j.device.kind != job::device_kind::emulated || !costs.has_bytes())
    simulation.slot_bytes = [&](step_id, stage_id s, microbatch_id) {
      return compute::slot_bytes(chunks, dispatch->shape, s);
    };
  const auto completed = simulate::run(simulation, costs);
  if (completed) return success();
  return job::blame(j, "dispatch.slot_bytes",
                    fmt::format("too small for the sequence of policy {}: {}",
                                dispatch->policies->name(), completed.message()));
}

}  // namespace

result<session_setup> make_setup_without_model(const job::job& j, const policy_registry& policies) {
  auto dispatch = job::make_dispatch_plan(j, policies);
  if (!dispatch) return dispatch.failure();
  std::vector<simulate::stage_costs> by_replica;
  for (std::uint32_t r = 0; r < j.pipeline.replicas; ++r) {
    auto expected = job::expected_costs(j, replica_id{r});
    if (!expected) return expected.failure();
    by_replica.push_back(*std::move(expected));
  }
  const auto costs =
      std::make_shared<const costs_of_replicas>(std::move(by_replica), j.pipeline.microbatches);
  const auto nominal = std::make_shared<const costs_of_replicas>(costs->undisturbed());
  session_setup setup;
  setup.shape = dispatch->shape;
  setup.ranks = j.pipeline.tp;
  setup.replicas = j.pipeline.replicas;
  setup.measures_shares = j.pipeline.shares == job::share_kind::measured;
  setup.rule = std::move(dispatch->rule);
  setup.lookahead = dispatch->lookahead;
  setup.spin = std::chrono::microseconds{j.run.spin_us};
  setup.limits = std::move(dispatch->limits);
  setup.train = j.train;
  setup.hang_timeout_s = j.run.hang_timeout_s;
  const bool emulated = j.device.kind == job::device_kind::emulated;
  const auto scale = emulated ? j.device.time_scale : 1.0;
  setup.delays = delays_of(j, costs, nominal, scale);
  if (!emulated) return setup;
  setup.emulated = emulation_of(j, nominal, scale);
  if (nominal->first().has_bytes())
    setup.slot_bytes = [nominal](step_id step, replica_id replica, stage_id s, microbatch_id mb) {
      const auto f = nominal->known({task_kind::forward, mb, chunk_id{0}});
      return nominal->of(replica).activation_bytes(step, s, f.mb);
    };
  return setup;
}

result<session_setup> make_session_setup(const job::job& j, const policy_registry& policies,
                                         const job_model* model) {
  if (auto fits = check_order_fits(j, policies); !fits) return fits.failure();
  auto made = make_setup_without_model(j, policies);
  if (!made) return made;
  auto& setup = *made;
  if (model != nullptr)
    if (auto complete = model->complete(setup); !complete) return complete.failure();
  if (setup.slot_bytes) return made;
  setup.slot_bytes = [chunks = chunks_of(j), shape = setup.shape](step_id, replica_id, stage_id s,
                                                                  microbatch_id) {
    return compute::slot_bytes(chunks, shape, s);
  };
  return made;
}

status check_same_data(std::span<const std::string> fingerprints) {
  const auto first = std::ranges::find_if(fingerprints, [](const auto& f) { return !f.empty(); });
  for (auto other = first; other != fingerprints.end(); ++other)
    if (!other->empty() && *other != *first)
      return error{
          fmt::format("node {} read different data than node {}: expected fingerprint {}, got {}",
                      other - fingerprints.begin(), first - fingerprints.begin(), *first, *other)};
  return success();
}

}  // namespace rrfp::actors
