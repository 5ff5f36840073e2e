#include "stage_supervisor.hpp"

#include <algorithm>
#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <rrfp/actors/control/hang_cause.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/core/transcript.hpp>

namespace rrfp::actors {

stage_supervisor::stage_supervisor(caf::actor_config& config, stage_parts parts, actor_ref job,
                                   std::shared_ptr<run_context> context)
    : actor_base(config),
      replica_(parts.replica),
      stage_(parts.core.config().stage),
      is_quick_(!context->setup.slot_bytes),
      job_(std::move(job)),
      context_(std::move(context)),
      core_(std::move(parts.core)),
      counters_(*parts.counters),
      ledger_(core_.config()) {
  counters_.slots_limit.set(core_.config().limit.slots);
  counters_.slot_bytes_limit.set(core_.config().limit.bytes);
  on_exception(this, [this](const std::string& why) { fail(why); });
}

caf::behavior stage_supervisor::make_behavior() {
  return {
      [this](stage_ranks& m) { ranks_ = std::move(m.ranks); },
      [this](const begin_step& m) { begin(m); },
      [this](const arrived& m) { on_arrived(m); },
      [this](const launch_done& m) { on_launch_done(m); },
      [this](decide_now) { choose(); },
      [this](rank_step_ended& m) { on_rank_step_ended(m); },
      [this](const apply_update& m) {
        phase_ = stage_phase::updating;
        ranks_to_update_ = ranks_.size();
        send_to_ranks(m);
      },
      [this](const update_applied& m) {
        if (--ranks_to_update_ == 0) phase_ = stage_phase::idle;
        post(job_, m);
      },
      [this](const report_state& m) {
        post(m.to, state_reported{replica_, stage_, full_report()});
      },
      [this](const copy_state& m) { send_to_ranks(m); },
      [this](const report_weights& m) { send_to_ranks(m); },
      [this](stage_weights& m) {
        m.transcript = std::exchange(transcript_, {});
        post(job_, std::move(m));
      },
      [this](report_progress) {
        auto now = state();
        post(job_, stage_progress{describe(now), std::move(now)});
      },
      [this](const stop&) {
        notify_core(abort{});
        quit();
      },
  };
}

void stage_supervisor::fail(const std::string& why, error_kind kind) {
  is_broken_ = true;
  post(job_, failed{{fmt::format("stage {}: {}", stage_.value(), why), kind}});
}

void stage_supervisor::fail_by_exception() {
  try {
    throw;
  } catch (const undefined_policy& e) {
    fail(e.what(), error_kind::bad_input);
  } catch (const std::exception& e) {
    fail(e.what());
  } catch (...) {
    fail("threw an object that is not a std::exception");
  }
}

void stage_supervisor::begin(const begin_step& m) try {
  const auto step = m.step;
  RRFP_CHECK(phase_ == stage_phase::idle, "a step begins after the one before");
  phase_ = stage_phase::running;
  step_ = step;
  const auto weight_pieces = pieces_of_next_step();
  const auto microbatches = m.microbatches.of(replica_);
  ledger_.begin(step, microbatches);
  outcome_ = {};
  times_.assign(ranks_.size(), {});
  if (context_->on_step_begun) context_->on_step_begun(step);
  step_began begun{.step = step, .weight_pieces = weight_pieces};
  if (microbatches != context_->setup.shape.microbatches) begun.microbatches = microbatches;
  if (const auto& slot_bytes = context_->setup.slot_bytes)
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      const auto at = m.microbatches.place_of(replica_, microbatch_id{mb});
      begun.slot_bytes.push_back(slot_bytes(step, at.sum, stage_, at.mb));
    }
  is_quick_ = true;
  notify_core(begun);
  // F loads its own data, so the inputs of the first part count as arrived.
  if (const auto first = context_->setup.shape.at(virtual_stage_id{0}); first.stage == stage_)
    for (std::uint32_t mb = 0; mb < microbatches; ++mb)
      for (std::uint32_t r = 0; r < core_.config().ranks; ++r)
        notify_core(input_arrived{task_kind::forward, microbatch_id{mb}, first.chunk, rank_id{r}});
  send_to_ranks(m);
  for (const auto& early : std::exchange(early_, {})) on_arrived(early);
  request_decision();
} catch (...) {
  fail_by_exception();
}

std::uint32_t stage_supervisor::pieces_of_next_step() const {
  // Pieces gain 1 to 3 % of a step.
  constexpr double launch_share_max = 0.02;
  const auto wanted = core_.hint().weight_pieces();
  if (core_.config().weight_pieces != 0 || wanted == 1 || times_.empty()) return 0;
  const auto& time = times_.front();
  const auto in_launches = time.launch_gap + time.late_end;
  if (time.launches == 0 || time.weights == 0 || in_launches == 0) return 0;
  const auto launch = static_cast<double>(in_launches) / time.launches;
  const auto weight = static_cast<double>(time.in_weight) / time.weights;
  const auto affordable = std::clamp(launch_share_max * weight / launch, 1.0, double(wanted));
  return static_cast<std::uint32_t>(affordable);
}

void stage_supervisor::on_arrived(const arrived& m) {
  if (phase_ != stage_phase::running || m.step != step_) {
    RRFP_CHECK(m.step > step_ || phase_ == stage_phase::idle,
               "nothing arrives for a step that is over");
    early_.push_back(m);
    return;
  }
  if (m.input.mb.value() >= core_.microbatches())
    return fail(fmt::format("{}: an input of microbatch {}: expected less than {}",
                            to_string(m.step), m.input.mb.value(), core_.microbatches()));
  notify_core(m.input);
  if (ranks_.size() > 1)
    if (const auto waited = ledger_.arrive(m.input, context_->now()))
      counters_.tp_waits.observe(*waited);
  request_decision();
}

void stage_supervisor::on_launch_done(const launch_done& m) {
  context_->note_progress();
  count_time(m);
  // Ranks begin a step in any order.
  if (outcome_.first_begin == 0 || m.begin < outcome_.first_begin) outcome_.first_begin = m.begin;
  outcome_.last_end = std::max(outcome_.last_end, m.end);
  outcome_.device_memory = compute::most_of(outcome_.device_memory, m.device_memory);
  notify_core(task_finished{m.launched.seq, m.rank});
  if (core_.outstanding() == 0) count_behind();
  if (context_->setup.trace != nullptr)
    context_->setup.trace->add(task_record{
        replica_, stage_, m.rank, m.step, m.launched, ledger_.decided_at(m.launched.seq).value(),
        m.begin, m.end, m.delay, core_.memory(), m.held_bytes, m.device_memory});
  // The backwards of an evaluation do nothing.
  if (const auto kind = m.launched.what.kind; kind == task_kind::forward || !is_evaluation(m.step))
    counters_.tasks[static_cast<std::size_t>(kind)].observe(m.end - m.begin);
  request_decision();
}

void stage_supervisor::count_time(const launch_done& m) {
  auto& time = times_[m.rank.value()];
  if (time.free_since != 0) {
    const auto waited = waited_ - time.waited_before;
    const auto gap = std::max<std::int64_t>(m.begin - time.free_since - waited, 0);
    time.launch_gap += gap;
    counters_.launch_gap_ns.add(static_cast<std::uint64_t>(gap));
  }
  const auto could_begin = std::max(time.free_since, ledger_.decided_at(m.launched.seq).value());
  time.late_begin += std::max<std::int64_t>(m.begin - could_begin, 0);
  time.late_end += m.late;
  time.busy += m.end - m.begin;
  ++time.launches;
  if (is_backward(m.launched.what.kind)) time.in_backward += m.end - m.begin;
  if (m.launched.what.kind == task_kind::weight) {
    time.in_weight += m.end - m.begin;
    time.weights += m.launched.piece.is_last();
  }
  time.free_since = std::max(m.end, m.released);
  time.blocked += time.free_since - m.end;
  time.waited_before = waited_;
}

void stage_supervisor::count_behind() {
  std::int64_t last = 0;
  for (const auto& time : times_) last = std::max(last, time.free_since);
  for (auto& time : times_) time.behind += last - std::exchange(time.free_since, last);
}

void stage_supervisor::choose() try {
  decision_requested_ = false;
  if (is_broken_ || phase_ != stage_phase::running) return;
  for (const auto& a : notify_core(decide{})) {
    if (context_->setup.record_transcripts) transcript_.push_back(to_line(a));
    std::visit([this](const auto& x) { perform(x); }, a);
  }
  const auto& memory = core_.memory();
  counters_.ready.set(core_.ready());
  counters_.outstanding.set(core_.outstanding());
  counters_.slots.set(memory.slots);
  counters_.slot_bytes.set(memory.bytes);
  if (!core_.step_complete()) return;
  phase_ = stage_phase::ending;
  send_to_ranks(end_step{step_});
} catch (...) {
  fail_by_exception();
}

void stage_supervisor::perform(const rrfp::launch& l) {
  const auto now = context_->now();
  end_wait(now);
  ledger_.decide(l, now);
  counters_.decisions[static_cast<std::size_t>(l.why.why)].add();
  counters_.skipped_hints.add(l.why.skipped);
  send_to_ranks(run_launch{step_, l});
}

void stage_supervisor::perform(const rrfp::wait& w) {
  if (waiting_ && waiting_->waiting == w) return;
  const auto now = context_->now();
  end_wait(now);
  ledger_.decide(w, now);
  waiting_ = wait_record{replica_, stage_, step_, w, now, now};
}

void stage_supervisor::end_wait(std::int64_t now) {
  if (!waiting_) return;
  waiting_->end = now;
  waited_ += now - waiting_->begin;
  const auto why = waiting_->waiting.why;
  if (why == wait_cause::ranks) outcome_.for_ranks += now - waiting_->begin;
  counters_.waited_ns[static_cast<std::size_t>(why)].add(
      static_cast<std::uint64_t>(now - waiting_->begin));
  if (context_->setup.trace != nullptr) context_->setup.trace->add(*waiting_);
  waiting_.reset();
}

void stage_supervisor::on_rank_step_ended(rank_step_ended& m) {
  context_->note_progress();
  outcome_.peak_bytes = std::max(outcome_.peak_bytes, m.peak_bytes);
  if (m.rank == rank_id{0}) outcome_.losses = std::move(m.losses);  // the same on every rank
  outcome_.norms.insert(outcome_.norms.end(), m.norms.begin(), m.norms.end());
  times_[m.rank.value()].in_collectives = m.in_collectives;
  ranks_ended_ |= rank_set{1} << m.rank.value();
  if (static_cast<std::size_t>(std::popcount(ranks_ended_)) < ranks_.size()) return;
  ranks_ended_ = 0;
  if (!is_evaluation(step_)) counters_.steps.add();
  context_->counters->last_step.set(metrics::steady_now());
  phase_ = stage_phase::idle;
  is_quick_ = !context_->setup.slot_bytes;
  outcome_.step = step_;
  outcome_.replica = replica_;
  outcome_.stage = stage_;
  outcome_.memory = core_.memory();
  for (const auto& time : times_) {
    outcome_.busy += time.busy;
    outcome_.blocked += time.blocked;
    outcome_.behind += time.behind;
    outcome_.launch_gap = std::max(outcome_.launch_gap, time.launch_gap);
    outcome_.own.push_back(time.busy + time.late_begin - time.in_collectives);
  }
  for (auto* sum : {&outcome_.busy, &outcome_.blocked, &outcome_.behind})
    *sum /= static_cast<std::int64_t>(times_.size());
  outcome_.in_backward = times_.front().in_backward;
  outcome_.in_weight = times_.front().in_weight;
  post(job_, std::move(outcome_));
}

stage_state stage_supervisor::state() const {
  stage_state s;
  s.replica = replica_;
  s.stage = stage_;
  s.phase = phase_;
  s.core = core_.snapshot();
  const auto& has_batch = context_->setup.has_batch;
  s.awaits_batch = phase_ == stage_phase::running && has_batch && !has_batch(step_);
  const auto now = context_->now();
  for (const auto& r : s.core.running)
    s.ages.push_back(now - ledger_.decided_at(r.launched.seq).value_or(now));
  if (phase_ == stage_phase::ending) s.not_ended = all_ranks(core_.config().ranks) & ~ranks_ended_;
  for (const auto& w : context_->watches)
    if (w.address.replica == replica_ && w.address.stage == stage_ && w.stage && w.stage->open())
      s.in_collective |= rank_set{1} << w.address.rank.value();
  return s;
}

std::string stage_supervisor::full_report() const {
  const job_dimensions job{core_.config().shape, core_.config().ranks, context_->setup.replicas};
  const auto decisions = ledger_.decisions();
  const auto now = state();
  auto text = describe(now) + "\n";
  for (const auto& line : details_of(job, now)) text += fmt::format("    {}\n", line);
  return text +
         fmt::format("    the last {} decisions, with the time since the run began:\n      {}\n",
                     decisions.size(), fmt::join(decisions, "\n      "));
}

std::string stage_supervisor::describe(const stage_state& s) const {
  const auto prefix =
      context_->setup.replicas == 1 ? std::string{} : fmt::format("replica {} ", replica_.value());
  const auto head = fmt::format("{}stage {}: {}: ", prefix, stage_.value(), to_string(s.core.step));
  if (s.phase == stage_phase::idle) return head + "done, waits for the job";
  if (s.awaits_batch) return head + "waits for its program, which has not given the batch";
  if (s.phase == stage_phase::ending)
    return head + "all tasks done, waits for its ranks to end the step";
  if (s.phase == stage_phase::updating) return head + "all tasks done, updates its parameters";
  const auto rest = fmt::format(", {} ready, {} of the step left, {} slots held", s.core.ready,
                                s.core.remaining, s.core.memory.slots);
  if (!s.core.running.empty())
    return head + fmt::format("{} launches not finished by its ranks", s.core.running.size()) +
           rest;
  if (!s.core.waits) return head + "about to decide" + rest;
  const auto& w = s.core.waiting;
  const auto producer = core_.config().shape.producer_of(stage_, w.head);
  const auto from = producer ? fmt::format("stage {}", producer->stage.value()) : "itself";
  return head +
         fmt::format("waits ({}) for {}, whose input comes from {}", rrfp::name(w.why),
                     to_string(w.head), from) +
         rest;
}

std::span<const action> stage_supervisor::notify_core(const event& e) {
  if (context_->setup.record_transcripts) transcript_.push_back(to_line(e));
  return core_.on(e);
}

void stage_supervisor::request_decision() {
  if (std::exchange(decision_requested_, true)) return;
  post(caf::actor_cast<caf::actor>(this), decide_now{});
}

template <class Message>
void stage_supervisor::send_to_ranks(const Message& m) {
  for (const auto& rank : ranks_) post(rank, m);
}

}  // namespace rrfp::actors
