/// What the job core saves: checkpoints, and copies for recovery.
#include <utility>

#include <rrfp/core/job_core.hpp>

namespace rrfp {

// ---- checkpoints

bool job_core::is_save_due(std::uint64_t steps, bool last) const {
  if (!options_.saves || no_more_saves_) return false;
  if (accumulates_ && !leaving_ && !finishing_) return false;
  // A program may have changed the state since this step was saved. Of a save that has failed,
  // answers may still come.
  if (steps == last_save_) return save_asked_ && steps > 0 && (save_ || steps == last_saved_);
  // Interrupted while steps are repeated after a loss: this or a newer checkpoint is there.
  if (steps <= last_saved_) return false;
  // A multiple may have passed while gradients accumulated.
  const auto every = options_.saves->every;
  return last || save_asked_ || (every > 0 && steps / every > last_save_ / every);
}

job_phase job_core::begin_save() {
  if (save_) return job_phase::waiting_to_save;
  save_asked_ = false;
  last_save_ = applied_;
  save_ = save{};
  save_->step = last_save_;
  save_->began = now_;
  actions_.push_back(job_action::open_save{save_->step});
  return job_phase::copying;
}

job_phase job_core::after(const job_event::save_opened& e) {
  if (!is_save_running(e.step) || std::exchange(save_->opened, true)) return phase_;
  actions_.push_back(job_action::take_snapshot{e.step});
  return phase_;
}

job_phase job_core::after(const job_event::snapshot_taken& e) {
  note_progress();
  if (!is_save_running(e.step) || ++save_->copies != saving_ranks()) return phase_;
  return phase_ == job_phase::copying ? continue_run() : phase_;
}

job_phase job_core::after(const job_event::snapshot_written& e) {
  if (!is_save_running(e.step)) return phase_;
  if (save_->failure.empty()) save_->failure = e.failure;
  if (++save_->files != saving_ranks()) return phase_;
  if (!save_->failure.empty()) return end_save(save_->failure);
  actions_.push_back(job_action::commit_save{e.step});
  return phase_;
}

job_phase job_core::after(const job_event::save_ended& e) {
  return is_save_running(e.step) ? end_save(e.failure) : phase_;
}

job_phase job_core::end_save(std::string failure, bool overdue) {
  if (failure.empty()) last_saved_ = save_->step;
  actions_.push_back(job_action::end_save{save_->step, std::move(failure), overdue});
  save_.reset();
  if (phase_ == job_phase::finishing_save) return end_in_order(conclusion_);
  // While it copies, the save has failed, and the next step waits for it.
  const bool waits = phase_ == job_phase::waiting_to_save || phase_ == job_phase::copying;
  return waits ? continue_run() : phase_;
}

// ---- copies for recovery

void job_core::copy_state_if_due() {
  // The state has no gradients that wait for their update.
  if (!options_.copies || copies_ || accumulates_) return;
  const bool was_restored = steps_ == 0;
  const bool is_first = options_.on_request && last_copied_ == 0;
  if (was_restored || is_first || steps_done() % options_.copies->every == 0) copy_state();
}

void job_core::copy_state() {
  last_copy_ = steps_done();
  copies_ = copies{steps_done(), now_};
  actions_.push_back(job_action::copy_state{steps_done(), last_copied_});
}

void job_core::give_up_copies(std::string failure) {
  actions_.push_back(job_action::drop_copies{copies_->step, std::move(failure)});
  copies_.reset();
}

job_phase job_core::after(const job_event::copy_taken& e) {
  if (!copies_ || copies_->step != e.step || ++copies_->taken != saving_ranks()) return phase_;
  return phase_ == job_phase::copying_memory ? continue_run() : phase_;
}

job_phase job_core::after(const job_event::copy_held& e) {
  if (!copies_ || copies_->step != e.step) return phase_;
  if (!e.failure.empty()) {
    give_up_copies(e.failure);
  } else if (++copies_->held == saving_ranks()) {
    actions_.push_back(job_action::keep_copies{e.step});
    last_copied_ = e.step;
    copies_.reset();
  }
  return copies_ ? phase_ : continue_after_copies(phase_);
}

job_phase job_core::continue_after_copies(job_phase phase) {
  if (phase == job_phase::handing_over) return hand_over();
  if (phase == job_phase::copying_memory) return continue_run();
  if (phase == job_phase::idle && !demands_.empty()) return serve_next_demand();
  return phase;
}

}  // namespace rrfp
