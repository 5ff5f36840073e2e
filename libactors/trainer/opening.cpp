/// How a pipeline comes up: options, other processes, session, the checkpoint to resume from.
#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/run_start.hpp>
#include <rrfp/actors/torch_framework.hpp>
#include <rrfp/actors/torch_model.hpp>
#include <rrfp/job/check_job.hpp>
#include <rrfp/version.hpp>

#include "pipeline_impl.hpp"
#include "user_functions.hpp"

namespace rrfp {

namespace {

status check_options(const job::job& j, const pipeline_options& o) {
  if (auto valid = job::check_job(j, policies::registry(), job::job_use::embed); !valid)
    return valid;
  if (j.device.kind != job::device_kind::cpu && o.make_compute)
    return job::blame(j, "device.kind", "expected \"cpu\" with a user-defined compute");
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

}  // namespace

status pipeline::impl::open() {
  if (auto call = begin_call(); !call) return call.failure();
  if (auto valid = check_options(job_, options_); !valid) return valid;
  // What one process alone can refuse, it refuses before it joins.
  auto setup = make_setup();
  if (!setup) return setup.failure();
  if (auto joined = join(); !joined) return joined;
  if (auto chosen = choose_resume(*setup); !chosen) return chosen;
  auto session = actors::open_session(job_, *std::move(setup), {members_.get(), start_});
  if (!session) return session.failure();
  if (auto all = model_.compare_names(members_.get()); !all) return all;
  if (auto all = exchange_lines(); !all) return all;
  session_ = std::move(*session);
  hooks_ = std::make_unique<hook_thread>();
  runner_ = std::thread{[self = shared_from_this()] { self->run(); }};
  return success();
}

status pipeline::impl::join() {
  auto place = options_.place ? result<actors::launch_place>{*options_.place}
                              : actors::resolve_launch({}, [](const char* name) -> const char* {
                                  return std::getenv(name);
                                });
  if (!place) return place.failure();
  if (place->nodes == 1) return success();
  const auto places = plan::node_places::make(job_, place->nodes);
  if (!places) return places.failure();
  find_ends(*places, node_id{place->node});
  actors::join_hooks hooks;
  hooks.version = version;
  hooks.description = places->describe(place->node);
  hooks.on_refused = print_to_stderr;
  auto joined = actors::join_job(job_, *place, *actors::make_torch_framework(), std::move(hooks));
  if (!joined) return joined.failure();
  members_ = *std::move(joined);
  return success();
}

status pipeline::impl::exchange_lines() {
  if (!options_.tell) return success();
  const auto mine = caught([&] { return result<std::string>{options_.tell()}; });
  if (members_ == nullptr) {
    if (!mine) return mine.failure();
    options_.hear(*mine);
    return success();
  }
  constexpr std::chrono::seconds limit{30};
  const auto all = actors::agree(
      *members_, mine,
      [](const std::vector<std::string>& lines) -> result<std::vector<std::string>> {
        return std::vector<std::string>{fmt::format("{}", fmt::join(lines, "\n"))};
      },
      limit);
  if (!all) return all.failure();
  options_.hear(*all);
  return success();
}

void pipeline::impl::find_ends(const plan::node_places& places, node_id here) {
  const auto shape = job::effective_shape(job_);
  const auto hosts = [&](virtual_stage_id vs) {
    for (std::uint32_t d = 0; d < job_.pipeline.replicas; ++d)
      for (std::uint32_t r = 0; r < job_.pipeline.tp; ++r)
        if (places.node_of(replica_id{d}, shape.at(vs).stage, rank_id{r}) == here) return true;
    return false;
  };
  has_first_ = hosts(virtual_stage_id{0});
  has_last_ = hosts(virtual_stage_id{shape.virtual_stages() - 1});
}

result<actors::session_setup> pipeline::impl::make_setup() {
  auto made = actors::make_setup_without_model(job_, policies::registry());
  if (!made) return made;
  auto& setup = *made;
  setup.name = job_.name;
  setup.on_request = true;
  if (auto ready = actors::compute_on_devices_of(job_, setup); !ready) return ready.failure();
  if (options_.make_compute) {
    setup.make_compute = [make = named("make_compute", options_.make_compute)](
                             const auto&, const actors::rank_place& place) {
      return make(place.address);
    };
  } else {
    actors::torch_model model;
    model.data = data_;
    model.make_chunk = [this, shape = setup.shape](virtual_stage_id vs,
                                                   std::shared_ptr<compute::rank_group> group) {
      return model_.make(shape, vs, std::move(group));
    };
    model.make_optimizer = named("make_optimizer", options_.make_optimizer);
    model.recompute = job_.pipeline.recompute;
    actors::train(setup, std::move(model));
  }
  setup.lr = named("lr", options_.lr);
  setup.wrap_transport = named("wrap_transport", options_.wrap_transport);
  if (options_.make_policy) setup.rule.make_policy = named("make_policy", options_.make_policy);
  if (options_.weather) setup.delays = *options_.weather;
  if (options_.slot_bytes)
    setup.slot_bytes = [bytes = named("slot_bytes", options_.slot_bytes)](
                           step_id, stage_id s, microbatch_id mb) { return bytes(s, mb); };
  else if (job_.dispatch.slot_bytes != 0)
    return job::blame(job_, "dispatch.slot_bytes",
                      "expected pipeline_options::slot_bytes to be set, got none");
  setup.trace = options_.trace;
  setup.board = &board_;
  // Hooks have a thread of their own, because one that blocks must not block the job.
  setup.on_checkpoint = [this](const actors::checkpoint_report& r) {
    if (!r.failure.empty()) {
      const std::lock_guard lock{mutex_};
      failed_save_ = fmt::format("checkpoint of step {} not saved: {}", r.step, r.failure);
      notes_.push_back(failed_save_);
    }
    if (options_.on_checkpoint)
      hooks_->post("on_checkpoint", [this, r] { options_.on_checkpoint(r); });
  };
  setup.on_report = [this](const std::string& text) {
    hooks_->post("on_report", [this, text] { options_.on_report(text); });
  };
  setup.on_step = [this](const actors::step_summary& s) { on_step(s); };
  setup.on_ending = [this](const actors::run_result& r) { end(r); };
  setup.checkpoint = actors::checkpoint_setup_of(job_, actors::identity_without_model(job_));
  return made;
}

status pipeline::impl::choose_resume(actors::session_setup& setup) {
  // The program decides the number of steps.
  auto endless = job_;
  endless.train.steps = std::numeric_limits<std::uint64_t>::max();
  const std::vector<actors::opened_run> run{{endless, nullptr, setup}};
  auto begun = actors::agree_on_start(members_.get(), run);
  if (!begun) return begun.failure();
  start_ = begun->start;
  setup = std::move(begun->setup);
  for (const auto& line : begun->notes) options_.on_note(line);
  if (setup.resume) {
    steps_ = setup.resume->contents.step;
    options_.on_note(fmt::format("resumes after step {} from {}", steps_, setup.resume->folder));
  }
  return success();
}

}  // namespace rrfp
