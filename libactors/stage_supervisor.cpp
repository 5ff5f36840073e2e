#include "stage_supervisor.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <rrfp/schedule/check.hpp>
#include <rrfp/schedule/transcript.hpp>

namespace rrfp::actors {

stage_supervisor::stage_supervisor(caf::actor_config& config, stage_parts parts, caf::actor job,
                                   std::shared_ptr<run_context> context)
    : actor_base(config),
      replica_(parts.replica),
      stage_(parts.config.stage),
      slot_bytes_(std::move(parts.slot_bytes)),
      job_(std::move(job)),
      context_(std::move(context)),
      core_(parts.config, std::move(parts.hint)) {}

caf::behavior stage_supervisor::make_behavior() {
  return {
      [this](crew& m) { take(m); },
      [this](const begin_step& m) { begin(m.step); },
      [this](const arrived& m) { take(m); },
      [this](const launch_done& m) { take(m); },
      [this](decide_now) {
        decision_asked_ = false;
        choose();
      },
      [this](rank_step_ended& m) { take(m); },
      [this](const apply_update& m) { tell_ranks(m); },
      [this](const update_applied& m) { post(job_, m); },
      [this](const take_snapshot& m) { tell_ranks(m); },
      [this](const snapshot_taken& m) { post(job_, m); },
      [this](snapshot_written& m) { post(job_, std::move(m)); },
      [this](const report_weights& m) { tell_ranks(m); },
      [this](stage_weights& m) {
        m.transcript = std::exchange(transcript_, {});
        post(job_, std::move(m));
      },
      [this](report_progress) { post(job_, stage_progress{describe()}); },
      [this](failed& m) { post(job_, std::move(m)); },
      [this](const stop& m) {
        tell_core(abort{});
        tell_ranks(m);
        quit();
      },
  };
}

void stage_supervisor::take(crew& m) {
  RRFP_CHECK(m.ranks.size() == core_.config().ranks, "every rank of the stage");
  ranks_ = std::move(m.ranks);
  for (const auto& rank : ranks_) link_to(rank);
}

void stage_supervisor::begin(step_id step) {
  RRFP_CHECK(phase_ == phase::idle, "a step begins after the one before");
  phase_ = phase::running;
  step_ = step;
  outcome_ = {};
  times_.assign(ranks_.size(), {});
  if (context_->on_step_begun) context_->on_step_begun(step);
  step_began begun{step, {}};
  if (slot_bytes_)
    for (std::uint32_t mb = 0; mb < context_->shape.microbatches; ++mb)
      begun.slot_bytes.push_back(slot_bytes_(step, microbatch_id{mb}));
  tell_core(begun);
  tell_ranks(begin_step{step});
  for (const auto& m : std::exchange(early_, {})) take(m);
  ask_for_decision();
}

void stage_supervisor::take(const arrived& m) {
  if (phase_ != phase::running || m.step != step_) {
    RRFP_CHECK(m.step > step_ || phase_ == phase::idle, "nothing arrives for a step that is over");
    early_.push_back(m);
    return;
  }
  tell_core(input_arrived{m.kind, m.mb, m.chunk, m.rank});
  ask_for_decision();
}

void stage_supervisor::take(const launch_done& m) {
  context_->note_progress();
  count_time(m);
  if (outcome_.first_begin == 0) outcome_.first_begin = m.begin;
  outcome_.last_end = std::max(outcome_.last_end, m.end);
  tell_core(task_finished{m.what.seq, m.rank});
  if (context_->trace != nullptr) {
    const auto decided = std::find_if(decisions_.begin(), decisions_.end(),
                                      [&](const auto& d) { return d.seq == m.what.seq; });
    context_->trace->add(task_record{replica_, stage_, m.rank, m.step, m.what, decided->at, m.begin,
                                     m.end, m.delay, core_.memory(), m.held_bytes, m.device_bytes,
                                     m.reserved_bytes});
    if (--decided->ranks_left == 0) decisions_.erase(decided);
  }
  ask_for_decision();
}

void stage_supervisor::count_time(const launch_done& m) {
  auto& time = times_[m.rank.value()];
  if (time.free_since != 0) {
    const auto waited = waited_ - time.waited_before;
    time.launch_gap += std::max<std::int64_t>(m.begin - time.free_since - waited, 0);
  }
  time.busy += m.end - m.begin;
  time.free_since = std::max(m.end, m.received);
  time.blocked += time.free_since - m.end;
  time.waited_before = waited_;
}

void stage_supervisor::choose() {
  if (phase_ != phase::running) return;
  if (context_->record_transcripts) transcript_.push_back(to_line(decide{}));
  for (const auto& a : core_.on(decide{})) {
    if (context_->record_transcripts) transcript_.push_back(to_line(a));
    std::visit([this](const auto& x) { perform(x); }, a);
  }
  if (!core_.step_complete()) return;
  phase_ = phase::ending;
  tell_ranks(end_step{step_});
}

void stage_supervisor::perform(const rrfp::launch& l) {
  const auto now = context_->now();
  end_wait(now);
  if (context_->trace != nullptr) decisions_.push_back({l.seq, now, ranks_.size()});
  tell_ranks(run_launch{step_, l});
}

void stage_supervisor::perform(const rrfp::wait& w) {
  if (waiting_ && waiting_->what == w) return;
  const auto now = context_->now();
  end_wait(now);
  waiting_ = wait_record{replica_, stage_, step_, w, now, now};
}

void stage_supervisor::end_wait(std::int64_t now) {
  if (!waiting_) return;
  waiting_->end = now;
  waited_ += now - waiting_->begin;
  if (context_->trace != nullptr) context_->trace->add(*waiting_);
  waiting_.reset();
}

void stage_supervisor::take(rank_step_ended& m) {
  context_->note_progress();
  outcome_.peak_bytes = std::max(outcome_.peak_bytes, m.peak_bytes);
  if (m.rank == rank_id{0}) outcome_.losses = std::move(m.losses);  // the same on every rank
  outcome_.norms.insert(outcome_.norms.end(), m.norms.begin(), m.norms.end());
  if (++ranks_ended_ < ranks_.size()) return;
  ranks_ended_ = 0;
  phase_ = phase::idle;
  outcome_.step = step_;
  outcome_.replica = replica_;
  outcome_.stage = stage_;
  outcome_.memory = core_.memory();
  for (const auto& time : times_) {
    outcome_.busy = std::max(outcome_.busy, time.busy);
    outcome_.blocked = std::max(outcome_.blocked, time.blocked);
    outcome_.launch_gap = std::max(outcome_.launch_gap, time.launch_gap);
  }
  post(job_, std::move(outcome_));
}

std::string stage_supervisor::describe() const {
  const auto where =
      context_->replicas == 1 ? std::string{} : fmt::format("replica {} ", replica_.value());
  const auto head = fmt::format("{}stage {}: step {}: ", where, stage_.value(), step_.value());
  if (phase_ == phase::idle) return head + "done, waits for the job";
  if (phase_ == phase::ending) return head + "all tasks done, waits for its ranks to end the step";
  const auto rest = fmt::format(", {} ready, {} of the step left, {} slots held", core_.ready(),
                                core_.remaining(), core_.memory().slots);
  if (core_.outstanding() > 0)
    return head + fmt::format("{} launches not finished by its ranks", core_.outstanding()) + rest;
  if (!waiting_) return head + "about to decide" + rest;
  const auto& w = waiting_->what;
  const auto& shape = core_.config().shape;
  const auto vs = shape.virtual_stage(stage_, w.head.chunk);
  const bool forward = w.head.kind == task_kind::forward;
  std::string from = "itself";
  if (forward && !shape.is_first(vs))
    from = fmt::format("stage {}", shape.at(virtual_stage_id{vs.value() - 1}).stage.value());
  if (is_backward(w.head.kind) && !shape.is_last(vs))
    from = fmt::format("stage {}", shape.at(virtual_stage_id{vs.value() + 1}).stage.value());
  return head +
         fmt::format("waits ({}) for {}, whose input comes from {}", rrfp::name(w.why),
                     to_string(w.head), from) +
         rest;
}

void stage_supervisor::tell_core(const event& e) {
  if (context_->record_transcripts) transcript_.push_back(to_line(e));
  core_.on(e);
}

void stage_supervisor::ask_for_decision() {
  if (std::exchange(decision_asked_, true)) return;
  post(caf::actor_cast<caf::actor>(this), decide_now{});
}

template <class Message>
void stage_supervisor::tell_ranks(const Message& m) {
  for (const auto& rank : ranks_) post(rank, m);
}

}  // namespace rrfp::actors
