#include "tp_rank.hpp"

#include <fmt/format.h>

#include <rrfp/schedule/check.hpp>

#include "collective_group.hpp"

namespace rrfp::actors {

namespace {

/// What the compute thread needs to run one launch; holds no part of the actor, which may be gone.
struct execution {
  run_launch what;
  at::Tensor input;
  rank_address address;
  caf::actor supervisor;
  std::shared_ptr<compute::stage_compute> compute;
  std::shared_ptr<run_context> context;

  void operator()(compute_thread& thread) {
    const auto& l = what.what;
    launch_done done{what.step, l, address.rank};
    done.begin = context->now();
    auto output = compute->run(l, std::move(input));
    if (context->delay) {
      const auto delay_from = context->now();
      const auto ms = context->delay(what.step, address.stage, address.rank, l.what);
      if (ms > 0 && !thread.pause(std::chrono::nanoseconds(static_cast<std::int64_t>(ms * 1e6))))
        return;
      done.delay = context->now() - delay_from;
    }
    done.end = context->now();
    done.held_bytes = compute->meter().current();
    if (output.defined()) send(l.what, std::move(output));
    post(supervisor, std::move(done));
  }

  void send(const task& t, at::Tensor output) const {
    const auto& shape = context->shape;
    const auto vs = shape.virtual_stage(address.stage, t.chunk).value();
    const bool forward = t.kind == task_kind::forward;
    const auto to = shape.at(virtual_stage_id{forward ? vs + 1 : vs - 1});
    context->wire->send({{forward ? payload::activation : payload::gradient,
                          what.step,
                          t.mb,
                          to.chunk,
                          address,
                          {to.stage, address.rank, address.replica}},
                         std::move(output)});
  }
};

}  // namespace

tp_rank::tp_rank(caf::actor_config& config, tp_rank_setup setup)
    : actor_base(config), setup_(std::move(setup)) {
  setup_.thread->post([] { compute::prepare_compute_thread(); });
}

template <class Work>
void tp_rank::on_compute_thread(Work work) {
  setup_.thread->post(
      [work = std::move(work), address = setup_.address, supervisor = setup_.supervisor]() mutable {
        try {
          work();
        } catch (const compute::compute_error& e) {
          post(supervisor, failed{e.what()});
        } catch (const std::exception& e) {
          post(supervisor, failed{fmt::format("stage {} rank {}: {}", address.stage.value(),
                                              address.rank.value(), e.what())});
        }
      });
}

caf::behavior tp_rank::make_behavior() {
  return {
      [this](message& m) { take(m); },
      [this](const begin_step& m) { begin(m.step); },
      [this](const run_launch& m) { start(m); },
      [this](const end_step& m) { end(m.step); },
      [this](const apply_update& m) {
        on_compute_thread([m, setup = setup_] {
          setup.compute->apply(m.scale, m.lr);
          post(setup.supervisor, update_applied{m.step});
        });
      },
      [this](const report_weights&) {
        on_compute_thread([setup = setup_] {
          post(setup.supervisor, stage_weights{setup.address, setup.compute->hashes(), {}});
        });
      },
      [this](const stop&) {
        for (const auto& group : {setup_.groups.stage, setup_.groups.replicas})
          if (group) group->abort("the run is over");
        setup_.thread->stop();
        quit();
      },
  };
}

void tp_rank::take(message& m) {
  const auto& h = m.header;
  if (h.what == payload::tied_gradient) {
    RRFP_CHECK(!tied_partner_, "one tied gradient a step");
    tied_partner_ = std::move(m);
    join_tied_if_both();
    return;
  }
  const bool forward = h.what == payload::activation;
  const bool fresh =
      inputs_.emplace(input_key{h.step, forward, h.mb, h.chunk}, std::move(m.tensor)).second;
  RRFP_CHECK(fresh, "an input arrives once");
  post(setup_.supervisor, arrived{h.step, forward ? task_kind::forward : task_kind::backward, h.mb,
                                  h.chunk, setup_.address.rank});
}

void tp_rank::begin(step_id step) {
  on_compute_thread([step, compute = setup_.compute] { compute->begin_step(step); });
  const auto& shape = setup_.context->shape;
  const auto first = shape.at(virtual_stage_id{0});
  if (first.stage != setup_.address.stage) return;
  // Data is loaded by the F that needs it, so all of it counts as here.
  for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
    post(setup_.supervisor,
         arrived{step, task_kind::forward, microbatch_id{mb}, first.chunk, setup_.address.rank});
}

void tp_rank::start(const run_launch& l) {
  if (auto taken = order_.take(l.what.seq, l.what.what); !taken)
    return post(setup_.supervisor,
                failed{fmt::format("stage {} rank {}: {}", setup_.address.stage.value(),
                                   setup_.address.rank.value(), taken.message())});
  const auto& t = l.what.what;
  const auto& shape = setup_.context->shape;
  const auto vs = shape.virtual_stage(setup_.address.stage, t.chunk);
  const bool forward = t.kind == task_kind::forward;
  const bool has_input = forward ? !shape.is_first(vs) : is_backward(t.kind) && !shape.is_last(vs);
  at::Tensor input;
  if (has_input) {
    auto taken = inputs_.extract(input_key{l.step, forward, t.mb, t.chunk});
    RRFP_CHECK(!taken.empty(), "a launched task's input is here");
    input = std::move(taken.mapped());
  }
  on_compute_thread([run = execution{l, std::move(input), setup_.address, setup_.supervisor,
                                     setup_.compute, setup_.context},
                     thread = setup_.thread]() mutable { run(*thread); });
}

void tp_rank::end(step_id step) {
  // Here and not at the end of the step for all: other stages still work.
  if (setup_.groups.replicas)
    on_compute_thread([step, setup = setup_] {
      const auto group = make_collective_group(setup.groups.replicas);
      group->set_task(step, {});
      for (auto& gradient : setup.compute->gradients()) group->all_reduce_sum(gradient);
      setup.context->note_progress();
    });
  if (setup_.tied_with != setup_.address.stage)
    on_compute_thread([step, setup = setup_] {
      auto mine = setup.compute->tied_gradient();
      RRFP_CHECK(mine.has_value(), "both sides of a tie have a gradient");
      setup.context->wire->send({{payload::tied_gradient,
                                  step,
                                  microbatch_id{},
                                  chunk_id{},
                                  setup.address,
                                  {setup.tied_with, setup.address.rank, setup.address.replica}},
                                 std::move(*mine)});
    });
  ending_ = step;
  join_tied_if_both();
}

void tp_rank::join_tied_if_both() {
  const bool tied = setup_.tied_with != setup_.address.stage;
  if (!ending_ || (tied && !tied_partner_)) return;
  const auto step = *std::exchange(ending_, std::nullopt);
  at::Tensor partner;
  if (tied) partner = std::move(tied_partner_->tensor);
  tied_partner_.reset();
  on_compute_thread([step, partner = std::move(partner), setup = setup_] {
    if (partner.defined()) setup.compute->join_tied(partner);
    post(setup.supervisor,
         rank_step_ended{step, setup.address.rank, setup.compute->losses(),
                         setup.compute->squared_norms(), setup.compute->meter().peak()});
  });
}

}  // namespace rrfp::actors
