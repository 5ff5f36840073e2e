/// How a pipeline comes up: its options, the model, and the loop.
#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/policies/guarded_policy.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/torch_actors/torch_framework.hpp>
#include <rrfp/torch_actors/torch_model.hpp>

#include "pipeline_impl.hpp"

#include <fmt/format.h>

namespace rrfp {

namespace {

status check_options(const job::job& j, const pipeline_options& o) {
  if (auto valid = job::check_job(j, policies::registry(), job::job_use::embed); !valid)
    return valid;
  if (j.device.kind != job::device_kind::cpu && o.make_compute)
    return job::blame(j, "device.kind", "expected \"cpu\" with a user-defined compute");
  if (o.make_compute && (j.pipeline.shares != job::share_kind::equal ||
                         j.recovery.without_replacement != job::loss_kind::wait))
    return error{
        "pipeline_options::make_compute: expected pipeline.shares = \"equal\" and "
        "recovery.without_replacement = \"wait\": its ranks run the microbatches of their replica"};
  if (o.autocast && *o.autocast != at::kBFloat16 && *o.autocast != at::kHalf)
    return error{fmt::format("pipeline_options::autocast: expected BFloat16 or Half, got {}",
                             c10::toString(*o.autocast))};
  const bool has_model = o.make_compute || o.make_chunk || o.make_stage || o.loss;
  if (j.device.kind == job::device_kind::emulated)
    return !has_model
               ? success()
               : job::blame(j, "device.kind",
                            "\"emulated\" computes nothing: expected no model and no loss in "
                            "pipeline_options");
  if (o.make_compute || o.make_chunk || (o.make_stage && o.loss)) return success();
  return error{
      "pipeline_options: expected make_stage and loss, or make_chunk, or make_compute, got none"};
}

/// Milliseconds that are no time are an error.
template <class... Arguments>
std::function<double(Arguments...)> in_range(std::function<double(Arguments...)> delay) {
  if (!delay) return delay;
  return [delay = std::move(delay)](Arguments... arguments) {
    constexpr double ms_max = 1e9;
    const double ms = delay(std::forward<Arguments>(arguments)...);
    if (!(ms <= ms_max))
      throw std::runtime_error(fmt::format("expected {} ms at most, got {}", ms_max, ms));
    return ms;
  };
}

}  // namespace

status pipeline::impl::open() {
  if (auto call = begin_call(); !call) return call.failure();
  if (auto valid = check_options(job_, options_); !valid) return valid;
  // What one process alone can refuse, it refuses before it joins.
  auto setup = make_setup();
  if (!setup) return setup.failure();
  setup->tell = [this] { return model_->names(); };
  setup->hear = &model_parts::compare_names;
  auto opened = loop_->open(actors::make_torch_framework(), *std::move(setup), shared_from_this());
  if (opened) note_places();
  return opened;
}

void pipeline::impl::note_places() {
  has_first_ = loop_->hosts(virtual_stage_id{0});
  has_last_ = loop_->hosts(virtual_stage_id{job::effective_shape(job_).virtual_stages() - 1});
}

status pipeline::impl::recover() {
  if (auto call = begin_call(); !call) return call.failure();
  auto recovered = loop_->recover();
  if (recovered) note_places();
  return recovered;
}

result<actors::session_setup> pipeline::impl::make_setup() {
  auto made = actors::make_setup_without_model(job_, policies::registry());
  if (!made) return made;
  auto& setup = *made;
  if (auto ready = actors::compute_on_devices_of(job_, setup); !ready) return ready.failure();
  if (options_.make_compute) {
    setup.make_compute = [make = named("make_compute", options_.make_compute)](
                             const auto&, const actors::rank_place& place) {
      auto compute = make(place.address);
      if (compute) return compute;
      return decltype(compute){
          within(fmt::format("stage {}", place.address.stage.value()), compute.failure())};
    };
  } else {
    actors::torch_model model;
    model.data = data_;
    model.make_chunk = [this, shape = setup.shape](virtual_stage_id vs,
                                                   std::shared_ptr<compute::rank_group> group) {
      return model_->make(shape, vs, std::move(group));
    };
    model.make_optimizer = named("make_optimizer", options_.make_optimizer);
    model.recompute = job_.pipeline.recompute;
    actors::train(setup, std::move(model));
  }
  setup.lr = named("lr", options_.lr);
  setup.wrap_transport = named("wrap_transport", options_.wrap_transport);
  if (options_.make_policy)
    setup.rule.make_policy = [make = named("make_policy", options_.make_policy)](
                                 const pipeline_shape& shape, stage_id stage) {
      auto own = make(shape, stage);
      if (own == nullptr) return own;
      const std::string name{own->name()};
      return policies::guarded(name, std::move(own));
    };
  if (options_.weather)
    setup.delays = {named("weather.compute", in_range(options_.weather->compute)),
                    named("weather.link", in_range(options_.weather->link))};
  if (options_.slot_bytes)
    setup.slot_bytes = [bytes = named("slot_bytes", options_.slot_bytes)](
                           step_id, replica_id, stage_id s, microbatch_id mb) {
      return bytes(s, mb);
    };
  else if (job_.dispatch.slot_bytes != 0)
    return job::blame(job_, "dispatch.slot_bytes",
                      "expected pipeline_options::slot_bytes to be set, got none");
  setup.trace = options_.trace;
  setup.checkpoint = actors::checkpoint_setup_of(job_, actors::identity_without_model(job_));
  return made;
}

}  // namespace rrfp
