#include <rrfp/core/job_core.hpp>

#include <algorithm>
#include <utility>

#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp {

namespace {

/// Whether the event is one of these.
template <class... Events>
bool is(const job_event::any& e) {
  return (std::holds_alternative<Events>(e) || ...);
}

}  // namespace

job_core::job_core(job_core_options options)
    : options_(options),
      applied_(options.first_step),
      last_save_(options.first_step),
      last_saved_(options.first_step) {
  if (options_.copies) evaluations_ = options_.copies->evaluations;
  if (!options_.copies || !options_.copies->restores) return;
  last_save_ = last_saved_ = options_.copies->saved;
  last_copy_ = last_copied_ = options_.first_step;
}

std::vector<job_action::any> job_core::on(const job_event::any& e, std::int64_t now) {
  now_ = now;
  if (expects(e)) phase_ = std::visit([this](const auto& x) { return after(x); }, e);
  return std::exchange(actions_, {});
}

/// Stale events end here. What an expected event repeats is found by its handler.
bool job_core::expects(const job_event::any& e) const {
  using namespace job_event;
  if (phase_ == job_phase::ended) return false;
  if (is<demanded, batch_given, snapshot_taken, snapshot_written, save_ended, copy_taken, copy_held,
         interrupted, drain_asked, node_waits, failed, suspected, timer_fired, progress_reported>(
          e))
    return true;
  if (is<tick, report_requested>(e))
    return phase_ != job_phase::created && phase_ != job_phase::reporting_hang;
  switch (phase_) {
    case job_phase::created: return is<start>(e);
    case job_phase::restoring: return is<state_restored>(e);
    case job_phase::stepping: return is<stage_ended, added_up>(e);
    case job_phase::updating: return is<update_applied>(e);
    case job_phase::copying: return is<save_opened>(e);
    case job_phase::hashing_weights: return is<weights_reported, weights_agree>(e);
    case job_phase::idle:
    case job_phase::waiting_to_save:
    case job_phase::copying_memory:
    case job_phase::handing_over:
    case job_phase::finishing_save:
    case job_phase::reporting_hang:
    case job_phase::ended: return false;
  }
  return false;
}

// ---- steps

job_phase job_core::after(const job_event::start&) {
  note_progress();
  set_timer(job_timer::watch, watch_ms);
  const auto& from = options_.copies;
  if (from && (from->restores || from->resumes) && is_evaluation_due())
    batches_left_ = options_.evaluation->batches;
  if (!from || !from->restores) return begin_next_step();
  actions_.push_back(job_action::restore_state{});
  return job_phase::restoring;
}

job_phase job_core::after(const job_event::state_restored&) {
  note_progress();
  if (++restored_ < rank_count()) return phase_;
  // A node that was lost took copies with it.
  copy_state_if_due();
  state_ready_ = options_.on_request;
  return continue_run();
}

job_phase job_core::begin_next_step() {
  if (options_.on_request) return serve_next_demand();
  if (batches_left_ > 0) {
    --batches_left_;
    return begin(step_id{first_evaluation + evaluations_++});
  }
  if (steps_done() == options_.steps) return hash_weights();
  return begin(step_id{steps_done()});
}

job_phase job_core::after(const job_event::demanded& e) {
  demands_.push_back(e);
  return phase_ == job_phase::idle ? serve_next_demand() : phase_;
}

job_phase job_core::after(const job_event::batch_given& e) {
  given_ = e.step;
  return phase_;
}

bool job_core::is_demand_late() const {
  const auto evaluation = step_id{first_evaluation + evaluations_};
  return phase_ == job_phase::idle && demands_.empty() &&
         (given_ == step_id{steps_done()} || given_ == evaluation);
}

job_phase job_core::serve_next_demand() {
  for (;;) {
    note_progress();
    if (finishing_) return hash_weights();
    if (demands_.empty() || waits_for_first_copies()) return job_phase::idle;
    auto [wanted, microbatches] = std::move(demands_.front());
    demands_.pop_front();
    switch (wanted) {
      case job_demand::train: return begin(step_id{steps_done()}, std::move(microbatches));
      case job_demand::accumulate:
        return begin(step_id{steps_done()}, std::move(microbatches), true);
      case job_demand::evaluate:
        return begin(step_id{first_evaluation + evaluations_++}, std::move(microbatches));
      case job_demand::finish:
        finishing_ = true;
        if (!is_save_due(applied_, true)) break;
        return begin_save();
      case job_demand::save: save_asked_ = state_ready_ = true; return continue_run();
    }
  }
}

bool job_core::waits_for_first_copies() const {
  const auto wanted = demands_.front().wanted;
  return copies_ && last_copied_ == 0 &&
         (wanted == job_demand::train || wanted == job_demand::accumulate);
}

job_phase job_core::begin(step_id step, microbatch_counts microbatches, bool accumulates) {
  step_ = step;
  const bool gradients_wait = accumulates_;
  if (!is_evaluation(step)) accumulates_ = accumulates;
  stages_ended_.clear();
  actions_.push_back(
      job_action::begin_step{step, accumulates, gradients_wait, std::move(microbatches)});
  return job_phase::stepping;
}

job_phase job_core::after(const job_event::stage_ended& e) {
  if (e.step != step_ || !exists(e.stage) || !stages_ended_.insert(e.stage).second) return phase_;
  if (stages_ended_.size() == stage_count()) actions_.push_back(job_action::add_up{step_});
  return phase_;
}

job_phase job_core::after(const job_event::added_up& e) {
  if (e.step != step_ || stages_ended_.size() < stage_count()) return phase_;
  if (is_evaluation(step_) || accumulates_) return finish_step();
  updates_ = 0;
  actions_.push_back(job_action::apply_update{step_});
  return job_phase::updating;
}

job_phase job_core::after(const job_event::update_applied& e) {
  if (e.step != step_ || ++updates_ < rank_count()) return phase_;
  return finish_step();
}

job_phase job_core::finish_step() {
  note_progress();
  if (!is_evaluation(step_)) {
    ++steps_;
    if (!accumulates_) applied_ = steps_done();
    if (is_evaluation_due()) batches_left_ = options_.evaluation->batches;
  }
  actions_.push_back(job_action::finish_step{step_});
  state_ready_ = options_.on_request;
  if (!is_evaluation(step_)) {
    copy_state_if_due();
    // After the last step the run is as good as done.
    const bool has_more = options_.on_request || steps_done() < options_.steps;
    if (drained_ && has_more && !accumulates_) leaving_ = true;
    if (drained_ && leaving_ && options_.on_request && !copies_ && last_copy_ != steps_done())
      copy_state();
  }
  return continue_run();
}

bool job_core::is_evaluation_due() const {
  if (!options_.evaluation) return false;
  const auto every = options_.evaluation->every;
  return steps_done() == options_.steps || (every > 0 && steps_done() % every == 0);
}

job_phase job_core::continue_run() {
  if (options_.on_request && copies_ && copies_->taken < saving_ranks())
    return job_phase::copying_memory;
  const bool is_last =
      leaving_ || finishing_ || (!options_.on_request && steps_done() == options_.steps);
  if (is_save_due(applied_, is_last)) return begin_save();
  save_asked_ = false;
  if (std::exchange(state_ready_, false)) actions_.push_back(job_action::state_ready{});
  if (leaving_) return leave();
  return begin_next_step();
}

// ---- the end

job_phase job_core::hash_weights() {
  actions_.push_back(job_action::report_weights{});
  return job_phase::hashing_weights;
}

job_phase job_core::after(const job_event::weights_reported& e) {
  if (!exists(e.from) || !hashed_.insert(e.from).second) return phase_;
  if (hashed_.size() == rank_count()) actions_.push_back(job_action::compare_weights{});
  return phase_;
}

job_phase job_core::after(const job_event::weights_agree&) {
  return hashed_.size() == rank_count() ? conclude(job_end::done) : phase_;
}

job_phase job_core::after(const job_event::interrupted& e) {
  drained_.reset();
  if (!options_.saves || e.again) {
    in_order_ = false;
    return end(job_end::interrupted);
  }
  switch (phase_) {
    case job_phase::created:
    case job_phase::restoring:
    case job_phase::reporting_hang:
    case job_phase::ended: in_order_ = false; return end(job_end::interrupted);
    case job_phase::stepping:
    case job_phase::updating: {
      leaving_ = true;
      // Complete the running step only if its end will be saved.
      const auto steps = is_evaluation(step_) || accumulates_ ? applied_ : steps_done() + 1;
      return is_save_due(steps, true) ? phase_ : leave();
    }
    case job_phase::idle:
    case job_phase::handing_over: leaving_ = true; return continue_run();
    case job_phase::finishing_save:
      if (conclusion_ == job_end::node_lost) return leave();
      [[fallthrough]];
    case job_phase::waiting_to_save:
    case job_phase::copying:
    case job_phase::copying_memory:
    case job_phase::hashing_weights: leaving_ = true; return phase_;
  }
  return phase_;
}

job_phase job_core::after(const job_event::drain_asked& e) {
  const auto is_new =
      std::find(drains_asked_.begin(), drains_asked_.end(), e.node) == drains_asked_.end();
  if (e.node.value() >= options_.nodes || !is_new) return phase_;
  drains_asked_.push_back(e.node);
  // Without copies nobody could take the place of the node.
  if (!options_.copies || drains_asked_.size() + options_.absent == options_.nodes)
    return after(job_event::interrupted{});
  if (drains_asked_.size() == 1) set_timer(job_timer::drain, options_.drain_ms);
  return phase_;
}

job_phase job_core::after(const job_event::node_waits& e) {
  if (leaving_ || drained_ || !options_.copies) return phase_;
  drained_ = e.node;
  return phase_;
}

job_phase job_core::hand_over() {
  if (!copies_ && last_copy_ != steps_done()) copy_state();
  return copies_ ? job_phase::handing_over : conclude(job_end::node_lost);
}

job_phase job_core::leave() {
  if (drained_) return hand_over();
  in_order_ = true;
  return conclude(job_end::interrupted);
}

job_phase job_core::conclude(job_end how) {
  if (!save_) return end_in_order(how);
  conclusion_ = how;
  return job_phase::finishing_save;
}

job_phase job_core::after(const job_event::failed& e) {
  return end(end_of(e.why.kind), e.why.message);
}

job_phase job_core::after(const job_event::suspected& e) {
  const bool is_first = !suspicion_;
  // What has failed before may be an effect of the loss.
  const auto is_loss = [](const error& why) { return why.kind == error_kind::node_lost; };
  if (is_first || (is_loss(e.why) && !is_loss(*suspicion_))) suspicion_ = e.why;
  if (is_first) set_timer(job_timer::loss, options_.loss_ms);
  return phase_;
}

job_phase job_core::end(job_end how, std::string message, bool hung) {
  if (save_)
    actions_.push_back(job_action::end_save{save_->step, "the run ended before it was written"});
  actions_.push_back(job_action::end{how, std::move(message), nothing_lost(), hung});
  return job_phase::ended;
}

job_phase job_core::end_in_order(job_end how) {
  if (how != job_end::node_lost) return end(how);
  // An absent node does not ask for a drain.
  const bool leaves =
      std::find(drains_asked_.begin(), drains_asked_.end(), *drained_) != drains_asked_.end();
  const auto message =
      "node " + std::to_string(drained_->value()) + (leaves ? " leaves the job" : " joins the job");
  actions_.push_back(job_action::end{how, message, false, false, drained_});
  return job_phase::ended;
}

// ---- hangs and reports

job_phase job_core::after(const job_event::tick& e) {
  silence_ = e.silence;
  auto next = phase_;
  if (save_ && now_ - save_->began > options_.saves->time_max) {
    no_more_saves_ = true;
    next = end_save({}, true);
    if (next == job_phase::ended) return next;
  }
  if (copies_ && now_ - copies_->began > options_.copies->time_max) {
    give_up_copies("not held within " + std::to_string(options_.copies->time_max / 1'000'000'000) +
                   " s");
    next = continue_after_copies(next);
    if (next == job_phase::ended) return next;
  }
  // Not a hang: saves and copies have limits of their own (time_max), and demands may come late.
  const auto is_late = is_demand_late();
  if (next == job_phase::waiting_to_save || next == job_phase::finishing_save ||
      next == job_phase::handing_over || (next == job_phase::idle && !is_late))
    note_progress();
  if (options_.hang_timeout_s > 0 && seconds(silence_) > options_.hang_timeout_s) {
    inquire(silence_,
            is_late ? "the leading process has not begun " + to_string(*given_) +
                          ", for which others wait"
                    : std::string{},
            true);
    return job_phase::reporting_hang;
  }
  set_timer(job_timer::watch, watch_ms);
  return next;
}

job_phase job_core::after(const job_event::report_requested& e) {
  if (!inquiry_) inquire(0, e.why, false);
  return phase_;
}

void job_core::inquire(std::int64_t silence, std::string why, bool hang) {
  inquiry_ = inquiry{++inquiries_, hang, {}};
  actions_.push_back(job_action::ask_progress{inquiries_, silence, std::move(why)});
  set_timer(job_timer::inquiry, inquiry_ms, inquiries_);
}

job_phase job_core::after(const job_event::progress_reported& e) {
  if (!inquiry_ || !exists(e.stage)) return phase_;
  inquiry_->answered.insert(e.stage);
  if (inquiry_->answered.size() == stage_count()) end_inquiry();
  return phase_;
}

void job_core::end_inquiry() {
  actions_.push_back(job_action::write_reports{inquiry_->number, inquiry_->hang});
  if (inquiry_->hang) set_timer(job_timer::reports, reports_ms);
  inquiry_.reset();
}

job_phase job_core::after(const job_event::timer_fired& e) {
  switch (e.which) {
    case job_timer::watch: return phase_;  // a tick
    case job_timer::inquiry:
      if (inquiry_ && inquiry_->number == e.number) end_inquiry();
      return phase_;
    case job_timer::reports:
      if (phase_ != job_phase::reporting_hang || inquiry_) return phase_;
      return end(job_end::failed, {}, true);
    case job_timer::loss:
      return suspicion_ ? end(end_of(suspicion_->kind), suspicion_->message) : phase_;
    case job_timer::drain:
      if (!leaving_ && !drains_asked_.empty()) drained_ = drains_asked_.front();
      return phase_;
  }
  return phase_;
}

// ----

void job_core::note_progress() {
  silence_ = 0;
  actions_.push_back(job_action::note_progress{});
}

void job_core::set_timer(job_timer which, std::uint32_t ms, std::uint64_t number) {
  actions_.push_back(job_action::set_timer{which, ms, number});
}

bool job_core::exists(const stage_key& s) const {
  return s.replica.value() < options_.replicas && s.stage.value() < options_.stages;
}

bool job_core::exists(const rank_address& r) const {
  return exists(stage_key{r.replica, r.stage}) && r.rank.value() < options_.ranks;
}

}  // namespace rrfp
