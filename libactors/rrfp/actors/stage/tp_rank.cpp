#include "tp_rank.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <rrfp/actors/recovery/state_bytes.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/device/collective_group.hpp>

#include "guarded.hpp"

namespace rrfp::actors {

namespace {

/// The error that broke one of the groups, if any.
status health_of(const rank_collectives& groups) {
  for (const auto& group : {groups.stage, groups.replicas})
    if (group != nullptr)
      if (auto healthy = group->health(); !healthy) return healthy;
  return success();
}

/// Throws if a group failed while the device worked: the results are invalid then.
void require_health(const rank_collectives& groups) {
  if (auto healthy = health_of(groups); !healthy) throw compute::group_error(healthy.message());
}

/// Sends a complete tensor; copies it to host memory first if the transport cannot read it.
void send_out(const std::shared_ptr<const tp_rank_setup>& rank, message m) {
  auto& wire = *rank->context->wire;
  if (m.tensor.on_host || wire.takes_device_memory(m.header.to)) return wire.send(std::move(m));
  rank->device->copy_out(std::move(m.tensor), [header = m.header, rank](result<tensor_buffer> t) {
    if (t) return rank->context->wire->send({header, std::move(*t)});
    rank->fail(t.message());
  });
}

/// Sends what `compute` returns on the device's thread, once the device has computed it; nothing:
/// there is nothing to send.
template <class Compute>
void send_computed(const std::shared_ptr<const tp_rank_setup>& rank, const message_header& header,
                   Compute compute) {
  const auto made = std::make_shared<std::optional<tensor_buffer>>();
  rank->device->occupy(
      [made, rank, compute = std::move(compute)] {
        *made = run_guarded(*rank, compute);
        return std::chrono::nanoseconds{0};
      },
      [made, rank, header](const occupancy& o) {
        if (!made->has_value()) return;
        run_guarded(*rank, [&] {
          if (!o.outcome) throw std::runtime_error(o.outcome.message());
          send_out(rank, {header, std::move(**made)});
        });
      });
}

constexpr std::chrono::nanoseconds from_ms(double ms) {
  return std::chrono::nanoseconds{static_cast<std::int64_t>(ms * 1e6)};
}

/// One launch while the device runs it. Does not refer to the actor, which may have ended.
class execution {
 public:
  execution(const run_launch& run, tensor_buffer input, std::optional<message_header> sum,
            std::shared_ptr<const tp_rank_setup> setup)
      : rank(std::move(setup)),
        run_(run),
        input_(std::move(input)),
        sum_header_(sum),
        done_{run.step, run.launched, rank->address.rank} {}

  /// Returns how long the device stays busy after the computation.
  std::chrono::nanoseconds begin() {
    const auto& context = *rank->context;
    done_.begin = context.now();
    output_ = rank->compute->run(run_.launched, std::move(input_));
    if (sum_header_) sum_ = rank->compute->take_opened_sum();
    const auto time_of = [&](const auto& task_ms) {
      const auto& l = run_.launched;
      const auto ms = task_ms(run_.step, rank->address, l.what);
      return std::int64_t{l.piece.share_of(from_ms(ms).count())};
    };
    const auto& setup = context.setup;
    if (setup.delays.compute) done_.delay = time_of(setup.delays.compute);
    auto stays_busy = done_.delay;
    if (setup.emulated) stays_busy += time_of(setup.emulated->task_ms);
    if (stays_busy > 0) free_at_ = context.now() + stays_busy;
    return std::chrono::nanoseconds{stays_busy};
  }

  void end(const occupancy& o) {
    if (!o.outcome) throw std::runtime_error(o.outcome.message());
    require_health(rank->groups);
    const auto& context = *rank->context;
    done_.end = context.now();
    if (free_at_) done_.late = std::max<std::int64_t>(done_.end - *free_at_, 0);
    if (o.busy) done_.begin = std::max(done_.begin, done_.end - o.busy->count());
    done_.held_bytes = rank->compute->held_bytes();
    done_.device_memory = o.memory;
    rank->counters->device_allocated.set(o.memory.allocated);
    rank->counters->device_reserved.set(o.memory.reserved);
    if (sum_) send_out(rank, {*sum_header_, std::move(*sum_)});
    auto* const gate = context.wire->gate();
    if (gate != nullptr) gate->end_task(rank->address, run_.step, run_.launched.what);
    if (!output_.defined()) return post(rank->supervisor, done_);
    rank->counters->sent.add();
    rank->counters->sent_bytes.add(output_.bytes());
    const auto& from = rank->address;
    const auto to = context.setup.shape.consumer_of(from.stage, run_.launched.what).value();
    const rank_address receiver{to.stage, from.rank, from.replica};
    message output{
        {payload_for(to.what.kind), run_.step, to.what.mb, to.what.chunk, from, receiver},
        std::move(output_)};
    if (gate == nullptr || to.stage == from.stage) {
      send_out(rank, std::move(output));
      return post(rank->supervisor, done_);
    }
    gate->send_output(std::move(output), [rank = rank, done = done_]() mutable {
      done.released = rank->context->now();
      post(rank->supervisor, done);
    });
  }

  const std::shared_ptr<const tp_rank_setup> rank;

 private:
  const run_launch run_;
  tensor_buffer input_;
  const std::optional<message_header> sum_header_;
  launch_done done_;
  std::optional<std::int64_t> free_at_;  ///< when the timer of an injected or emulated time ends
  tensor_buffer output_;
  std::optional<tensor_buffer> sum_;
};

}  // namespace

std::string tp_rank_setup::name() const {
  return fmt::format("stage {} rank {}", address.stage.value(), address.rank.value());
}

void tp_rank_setup::fail(const std::string& why) const { report(name() + ": " + why); }

void tp_rank_setup::suspect(const std::string& why) const {
  post(job, suspected{{why, error_kind::failed}});
}

void tp_rank_setup::report(const std::string& why) const {
  if (health_of(groups))
    post(job, failed{{why, error_kind::failed}});
  else
    suspect(why);
}

tp_rank::tp_rank(caf::actor_config& config, tp_rank_setup setup)
    : actor_base(config), setup_(std::make_shared<const tp_rank_setup>(std::move(setup))) {
  setup_->device->post([rank = setup_] { rank->compute->prepare_thread(); });
  on_exception(this, [rank = setup_](const std::string& why) { rank->fail(why); });
}

caf::behavior tp_rank::make_behavior() {
  return {
      [this](message& m) { on_tensor(m); },
      [this](const restore_state&) { on_restore_state(); },
      [this](const begin_step& m) { begin(m); },
      [this](const run_launch& m) { start(m); },
      [this](const end_step& m) { end(m.step); },
      [this](const apply_update& m) {
        on_device(setup_, [m, rank = setup_] {
          if (const auto copying = std::exchange(*rank->copying, nullptr)) copying->finish();
          rank->compute->apply(m.scale, m.lr);
          post(rank->supervisor, update_applied{m.step});
        });
      },
      [this](const take_snapshot& m) { on_take_snapshot(m); },
      [this](const copy_state& m) { on_copy_state(m); },
      [this](const report_weights&) {
        on_device(setup_, [rank = setup_] {
          post(rank->supervisor, stage_weights{rank->address, rank->compute->hashes(), {}});
        });
      },
      [this](const stop&) {
        for (const auto& group : {setup_->groups.stage, setup_->groups.replicas})
          if (group) group->abort("the run is over");
        setup_->device->stop();
        quit();
      },
  };
}

void tp_rank::copy_to_device(message& m) {
  setup_->device->copy_in(
      std::move(m.tensor), [self = caf::actor_cast<caf::actor>(this), header = m.header,
                            rank = setup_](result<tensor_buffer> t) {
        if (t) return post(self, message{header, std::move(*t)});
        // Only the device's thread knows the slots held.
        rank->device->post([header, rank, why = t.message()] {
          const auto what = is_input(header.kind)
                                ? fmt::format("the input of microbatch {}", header.mb.value())
                                : std::string{"a gradient"};
          run_guarded(*rank, [&] { rank->compute->fail_input(what, why); });
        });
      });
}

void tp_rank::on_tensor(message& m) {
  if (!setup_->device->can_read(m.tensor)) return copy_to_device(m);
  const auto& h = m.header;
  setup_->counters->received.add();
  setup_->counters->received_bytes.add(m.tensor.bytes());
  if (h.kind == payload::tied_gradient) {
    RRFP_CHECK(!tied_partner_, "one tied gradient a step");
    tied_partner_ = std::move(m);
    join_tied_if_both();
    return;
  }
  if (h.kind == payload::opened_sum) return on_opened_sum(m);
  if (!is_input(h.kind))
    return setup_->fail("a message came that is no input of a task: has each node the same gate?");
  const auto& shape = setup_->context->setup.shape;
  if (h.mb.value() >= microbatches_max || h.chunk.value() >= shape.chunks)
    return setup_->fail(
        fmt::format("a tensor came for microbatch {} of chunk {}: expected less than {} and {}",
                    h.mb.value(), h.chunk.value(), microbatches_max, shape.chunks));
  const bool forward = h.kind == payload::activation;
  auto& input = input_of(forward, h.mb, h.chunk);
  RRFP_CHECK(!input.tensor.defined(), "an input arrives once");
  input = {h.step, std::move(m.tensor)};
  setup_->counters->inputs_waiting.set(++inputs_waiting_);
  const auto kind = forward ? task_kind::forward : task_kind::backward;
  post(setup_->supervisor, arrived{h.step, {kind, h.mb, h.chunk, setup_->address.rank}});
}

tp_rank::waiting_input& tp_rank::input_of(bool forward, microbatch_id mb, chunk_id chunk) {
  const auto chunks = setup_->context->setup.shape.chunks;
  const auto at = 2 * (std::size_t{mb.value()} * chunks + chunk.value()) + (forward ? 1 : 0);
  // The inputs of a step may arrive before it begins here and says how many there are.
  if (at >= inputs_.size()) inputs_.resize(std::size_t{2} * chunks * (mb.value() + 1));
  return inputs_[at];
}

/// The other rank may be in the next step already.
void tp_rank::on_opened_sum(message& m) {
  if (awaits_sum_ && m.header.step == step_) return join_opened_sum(std::move(m.tensor));
  RRFP_CHECK(!opened_sum_, "one opened sum a step");
  opened_sum_ = std::move(m);
}

void tp_rank::join_opened_sum(tensor_buffer sum) {
  awaits_sum_ = false;
  // If this rank has done its part before, it leaves the sum to the next one only now.
  send_computed(setup_, opens_sum_.value_or(message_header{}),
                [sum = std::move(sum), rank = setup_] {
                  rank->compute->join_opened_sum(sum);
                  return rank->compute->take_opened_sum();
                });
  if (std::exchange(sum_waits_, false)) sum_gradients(step_);
}

void tp_rank::begin(const begin_step& m) {
  const auto step = m.step;
  const auto& own = setup_->address;
  step_ = step;
  purpose_ = m.purpose;
  setup_->device->begin_step(step);
  on_device(setup_, [m, rank = setup_] {
    if (const auto& wait = rank->context->setup.before_step)
      wait(m.step, [&rank] { rank->context->run_posted(rank->address); });
    rank->compute->begin_step(m.step, m.purpose, m.microbatches);
  });
  opens_sum_.reset();
  if (purpose_ == compute::step_purpose::training && setup_->compute->has_gradients())
    for (const auto& part : m.microbatches.parts_of(own.replica)) {
      awaits_sum_ = awaits_sum_ || !part.opens;
      if (part.closes) continue;
      const auto next = m.microbatches.runner_of(microbatch_id{part.end()});
      opens_sum_ = {payload::opened_sum, step, {}, {}, own, {own.stage, own.rank, next}};
    }
  if (opened_sum_) join_opened_sum(std::move(std::exchange(opened_sum_, std::nullopt)->tensor));
  collective_ns_before_ = setup_->counters->collective_ns.value();
  if (auto* gate = setup_->context->wire->gate())
    gate->begin_step(own, step, m.microbatches.of(own.replica));
}

void tp_rank::start(const run_launch& l) {
  if (auto taken = order_.accept(l.launched.seq, l.launched.what); !taken)
    return setup_->fail(taken.message());
  const auto& t = l.launched.what;
  const bool forward = t.kind == task_kind::forward;
  tensor_buffer input;
  // The early pass of an F keeps its input for the other one.
  if (l.launched.pass != forward_pass::again &&
      setup_->context->setup.shape.producer_of(setup_->address.stage, t)) {
    auto& waiting = input_of(forward, t.mb, t.chunk);
    RRFP_CHECK(waiting.tensor.defined() && waiting.step == l.step,
               "a launched task's input is here");
    input = std::exchange(waiting.tensor, {});
    setup_->counters->inputs_waiting.set(--inputs_waiting_);
  }
  // Both halves run on the device, one after the other.
  const auto run = std::make_shared<execution>(l, std::move(input), opens_sum_, setup_);
  setup_->device->occupy([run] { return run_guarded(*run->rank, &execution::begin, *run); },
                         [run](const occupancy& o) {
                           std::optional<caller_runs> scope;
                           if (run->rank->device->may_linger_after()) scope.emplace();
                           run_guarded(*run->rank, &execution::end, *run, o);
                         });
}

void tp_rank::end(step_id step) {
  // All tasks have ended, and the sum over the replicas has not begun.
  in_collectives_ =
      static_cast<std::int64_t>(setup_->counters->collective_ns.value() - collective_ns_before_);
  if (purpose_ == compute::step_purpose::training) {
    sum_waits_ = awaits_sum_;
    if (!sum_waits_) sum_gradients(step);
    return;
  }
  on_device(setup_, [step, in_collectives = in_collectives_, rank = setup_] {
    auto losses = rank->compute->losses();
    const auto peak = rank->compute->peak_bytes();
    rank->compute->end_without_update();
    post(rank->supervisor,
         rank_step_ended{step, rank->address.rank, std::move(losses), {}, peak, in_collectives});
  });
}

void tp_rank::sum_gradients(step_id step) {
  // Now, while other stages still work, not at the end of the step.
  if (setup_->groups.replicas)
    on_device(setup_, [step, rank = setup_] {
      const auto group = make_collective_group(rank->groups.replicas, rank->replicas_watch);
      group->set_task(step, {});
      rank->compute->sum_gradients(*group);
      rank->context->note_progress();
    });
  if (setup_->tied_with != setup_->address.stage) send_tied(step);
  ending_ = step;
  join_tied_if_both();
}

void tp_rank::send_tied(step_id step) {
  const auto& from = setup_->address;
  const message_header header{
      payload::tied_gradient, step, {}, {}, from, {setup_->tied_with, from.rank, from.replica}};
  send_computed(setup_, header, [rank = setup_] {
    auto mine = rank->compute->tied_gradient();
    RRFP_CHECK(mine.has_value(), "both sides of a tie have a gradient");
    return mine;
  });
}

void tp_rank::join_tied_if_both() {
  const bool tied = setup_->tied_with != setup_->address.stage;
  if (!ending_ || (tied && !tied_partner_)) return;
  const auto step = *std::exchange(ending_, std::nullopt);
  tensor_buffer partner;
  if (tied) partner = std::move(tied_partner_->tensor);
  tied_partner_.reset();
  on_device(setup_,
            [step, partner = std::move(partner), in_collectives = in_collectives_, rank = setup_] {
              auto& compute = *rank->compute;
              if (partner.defined()) compute.join_tied(partner);
              rank_step_ended ended{step,
                                    rank->address.rank,
                                    compute.losses(),
                                    compute.squared_norms(),
                                    compute.peak_bytes(),
                                    in_collectives};
              require_health(rank->groups);
              post(rank->supervisor, std::move(ended));
            });
}

}  // namespace rrfp::actors
