#include "job_actor.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <rrfp/actors/control/hang_cause.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::actors {

namespace {

run_totals totals_of(const session_setup& setup, const recovery_setup* recovery) {
  run_totals made{setup.train, setup.lr, setup.shape.stages, setup.first_step()};
  if (recovery == nullptr) return made;
  const auto& from = recovery->from;
  if (from.has_copies())
    made.go_on_from(from.record);
  else if (from.began_after)
    made.go_on_from(setup.resume ? setup.resume->contents.history : "", *from.began_after);
  return made;
}

job_core_options core_options(const run_context& context, const recovery_setup* recovery,
                              const run_totals& totals) {
  const auto& setup = context.setup;
  job_core_options o;
  o.stages = setup.shape.stages;
  o.ranks = setup.ranks;
  o.replicas = setup.replicas;
  o.nodes = context.nodes();
  if (const auto* c = context.in_cluster)
    o.absent = static_cast<std::uint32_t>(c->start.absent.size());
  o.first_step = setup.first_step();
  o.steps = setup.train.steps;
  o.on_request = setup.on_request;
  if (!setup.on_request) o.evaluation = setup.evaluation;
  if (setup.checkpoint)
    o.saves = {setup.checkpoint->every,
               std::chrono::nanoseconds{setup.checkpoint->save_time_max}.count()};
  // The record of the copies does not know of a save that was completed after them.
  const auto newest = setup.checkpoint ? setup.checkpoint->newest_step : 0;
  if (recovery != nullptr)
    o.copies = {.every = recovery->every,
                .restores = recovery->from.has_copies(),
                .resumes = totals.steps() > 0,
                .saved = std::max(totals.saved_step(), newest),
                .evaluations = totals.evaluations() * (o.evaluation ? o.evaluation->batches : 0)};
  o.hang_timeout_s = setup.hang_timeout_s;
  // In one process no loss can be the cause.
  o.loss_ms = context.nodes() > 1 ? static_cast<std::uint32_t>(unexplained_loss_time.count()) : 0;
  return o;
}

}  // namespace

job_actor::job_actor(caf::actor_config& config, std::shared_ptr<run_context> context,
                     std::function<void(run_result)> on_end)
    : actor_base(config),
      context_(std::move(context)),
      setup_(context_->setup),
      recovery_(context_->copies ? &*setup_.recovery : nullptr),
      on_end_(std::move(on_end)),
      totals_(totals_of(setup_, recovery_)),
      late_(setup_.replicas, setup_.shape.stages, setup_.ranks, context_->counters->job.late),
      planner_({setup_.replicas, setup_.shape.stages,
                context_->in_cluster != nullptr ? context_->in_cluster->places.devices()
                                                : std::vector<std::uint32_t>{},
                setup_.measures_shares}),
      core_(core_options(*context_, recovery_, totals_)) {
  for (std::uint32_t n = 0; n < context_->nodes(); ++n) nodes_.emplace_back(n);
  if (const auto* c = context_->in_cluster)
    for (const auto absent : c->start.absent) std::erase(nodes_, absent);
  // Not through the core, which may have ended the run in the event whose actions threw.
  on_exception(this, [this](const std::string& why) {
    carry_out(job_action::end{job_end::failed, "job: " + why, core_.nothing_lost()});
  });
}

caf::behavior job_actor::make_behavior() {
  if (setup_.checkpoint) saves_.emplace(*setup_.checkpoint, setup_.shape.stages * setup_.ranks);
  result_.transcripts.resize(setup_.shape.stages);
  hashes_.resize(setup_.replicas);
  return {
      [this](start m) { feed(m); },
      [this](state_restored m) { feed(m); },
      [this](const copies_arrive&) { context_->note_progress(); },
      [this](const copy_taken& m) { feed(m); },
      [this](copy_held& m) { feed(std::move(m)); },
      [this](stage_step_ended& m) { on_stage_step_ended(m); },
      [this](const update_applied& m) { feed(m); },
      [this](stage_weights& m) { on_stage_weights(m); },
      [this](stage_progress& m) { on_stage_progress(m); },
      [this](failed& m) { feed(std::move(m)); },
      [this](node_lost& m) {
        feed(job_event::failed{{std::move(m.message), error_kind::node_lost}});
      },
      [this](suspected& m) { feed(std::move(m)); },
      [this](const snapshot_taken& m) {
        saves_->record(m, context_->now());
        feed(job_event::snapshot_taken{m.step});
      },
      [this](const snapshot_written& m) {
        saves_->record(m);
        feed(job_event::snapshot_written{m.step, m.failure});
      },
      [this](save_ended& m) { feed(std::move(m)); },
      [this](const interrupted& m) { feed(m); },
      [this](const drain_asked& m) { feed(m); },
      [this](const node_waits& m) { feed(m); },
      [this](demanded& m) { feed(std::move(m)); },
      [this](const batch_given& m) { feed(m); },
      [this](report_requested& m) { feed(std::move(m)); },
      [this](const timer_fired& m) { on_timer_fired(m); },
  };
}

// ---- events

void job_actor::feed(job_event::any e) {
  for (std::optional next{std::move(e)}; next; next = std::exchange(answer_, std::nullopt))
    for (const auto& action : core_.on(*next, context_->now()))
      std::visit([this](const auto& a) { carry_out(a); }, action);
}

void job_actor::on_stage_step_ended(stage_step_ended& m) {
  const job_event::stage_ended e{m.step, {m.replica, m.stage}};
  totals_.record(std::move(m));
  feed(e);
}

void job_actor::on_stage_weights(stage_weights& m) {
  auto& hashes = hashes_[m.from.replica.value()];
  hashes.insert(hashes.end(), m.hashes.begin(), m.hashes.end());
  if (m.from.replica == replica_id{0} && !m.transcript.empty())
    result_.transcripts[m.from.stage.value()] = std::move(m.transcript);
  feed(job_event::weights_reported{m.from});
}

void job_actor::on_stage_progress(stage_progress& m) {
  if (!inquiry_) return;
  const stage_key from{m.state.replica, m.state.stage};
  // A stage may answer the previous inquiry as well.
  for (const auto& s : inquiry_->states)
    if (stage_key{s.replica, s.stage} == from) return;
  inquiry_->texts.push_back(std::move(m.text));
  inquiry_->states.push_back(std::move(m.state));
  feed(job_event::progress_reported{from});
}

void job_actor::on_timer_fired(const timer_fired& m) {
  if (m.which == job_timer::watch) return feed(job_event::tick{context_->silence()});
  feed(m);
}

// ---- actions: steps

void job_actor::carry_out(const job_action::begin_step& a) {
  const auto purpose = is_evaluation(a.step) ? compute::step_purpose::evaluation
                       : a.accumulates       ? compute::step_purpose::accumulation
                                             : compute::step_purpose::training;
  auto counts = a.microbatches;
  if (counts.empty() && setup_.microbatches) counts = setup_.microbatches(a.step);
  counts = counts.or_equal(setup_.replicas, setup_.shape.microbatches);
  // Gradients that wait for an update are those of the replica itself.
  const bool is_own = a.gradients_wait || a.accumulates;
  shares_ = is_own          ? microbatch_shares{counts}
            : setup_.shares ? setup_.shares(a.step, counts)
                            : planner_.plan(counts);
  if (!std::ranges::all_of(shares_.shares, [this](auto n) { return is_defined(n); }))
    shares_ = {std::move(counts)};
  totals_.begin_step(a.step, purpose, shares_, context_->now());
  send_to_stages(begin_step{a.step, purpose, shares_}, setup_.replicas);
}

bool job_actor::is_defined(std::uint32_t microbatches) {
  const auto [known, is_new] = are_defined_.try_emplace(microbatches, true);
  auto shape = setup_.shape;
  shape.microbatches = microbatches;
  if (!is_new || microbatches == 0) return known->second;
  try {
    for (std::uint32_t s = 0; s < shape.stages; ++s)
      static_cast<void>(setup_.rule.make_policy(shape, stage_id{s}));
  } catch (const std::exception&) {
    known->second = false;
  }
  return known->second;
}

void job_actor::report(const straggler& s, std::uint64_t step) const {
  if (!setup_.on_straggler) return;
  straggler_report r{s, step, {}};
  if (context_->in_cluster != nullptr)
    for (const auto rank : s.ranks)
      r.nodes.push_back(context_->in_cluster->places.node_of(s.replica, s.stage, rank));
  r.nodes.erase(std::unique(r.nodes.begin(), r.nodes.end()), r.nodes.end());
  setup_.on_straggler(r);
}

void job_actor::observe() {
  std::vector<double> work(setup_.replicas);
  std::vector<share_planner::stage_time> times;
  for (const auto& [from, o] : totals_.outcomes())
    for (const auto& l : o.losses) work[from.replica.value()] += static_cast<double>(l.tokens);
  for (const auto& [from, o] : totals_.outcomes())
    times.push_back({static_cast<double>(std::ranges::max(o.own)), work[from.replica.value()]});
  planner_.observe(shares_.counts, times);
}

void job_actor::carry_out(const job_action::add_up& a) {
  const auto update = totals_.add_up();
  if (!update) return answer(job_event::failed{update.failure()});
  update_ = *update;
  answer(job_event::added_up{a.step});
}

void job_actor::carry_out(const job_action::apply_update&) {
  send_to_stages(update_, setup_.replicas);
}

void job_actor::carry_out(const job_action::finish_step& a) {
  const auto& summary = totals_.finish_step(context_->now());
  if (summary.purpose != compute::step_purpose::evaluation) {
    count(summary);
    record(a.step, summary);
    auto share = context_->counters->job.shares.begin();
    for (std::uint32_t r = 0; r < setup_.replicas; ++r) (share++)->set(shares_.of(replica_id{r}));
    if (summary.purpose == compute::step_purpose::training) observe();
    for (const auto& s : late_.add(totals_.outcomes())) report(s, summary.step);
  }
  if (summary.purpose == compute::step_purpose::evaluation) {
    if (!setup_.on_request) return finish_batch();
    count_evaluation(summary.loss);
  }
  if (setup_.on_request)
    finished_ = summary;
  else
    tell(summary);
}

void job_actor::tell(const step_summary& summary) {
  if (setup_.on_step) setup_.on_step(summary);
  // This node has called on_step.
  for (const auto n : nodes_)
    if (const auto node = context_->actors.node(n); !node.here()) post(node, step_over{summary});
}

void job_actor::carry_out(const job_action::state_ready& a) {
  if (const auto finished = std::exchange(finished_, std::nullopt)) return tell(*finished);
  send_to_nodes(a);
}

void job_actor::finish_batch() {
  const auto e = totals_.finish_batch(setup_.evaluation->batches);
  if (!e) return;
  count_evaluation(e->loss);
  if (setup_.on_evaluation) setup_.on_evaluation(*e);
}

void job_actor::count_evaluation(double loss) {
  auto& counters = context_->counters->job;
  counters.evaluations.add();
  counters.eval_loss.set(loss);
}

void job_actor::record(step_id step, const step_summary& s) {
  auto* const trace = setup_.trace;
  if (trace == nullptr) return;
  std::int64_t peak = 0;
  for (const auto& [_, o] : totals_.outcomes()) peak = std::max(peak, o.peak_bytes);
  const auto began = totals_.step_began();
  trace->add(step_record{step, began, began + std::llround(s.step_ms * 1e6), peak});
}

void job_actor::count(const step_summary& s) {
  auto& counters = context_->counters->job;
  counters.steps.add();
  counters.tokens.add(static_cast<std::uint64_t>(s.tokens));
  counters.loss.set(s.loss);
  counters.gradient_norm.set(s.gradient_norm);
  counters.lr.set(s.lr);
  counters.bubble_fraction.set(s.bubble_fraction);
  counters.step_time.observe(static_cast<std::int64_t>(s.step_ms * 1e6));
}

// ---- actions: saves

void job_actor::carry_out(const job_action::open_save& a) {
  const auto now = context_->now();
  auto history = recovery_ != nullptr
                     ? totals_.record(now, core_.last_saved(), saves_->saved()).bytes
                     : std::string{};
  if (auto begun = saves_->begin(a.step, now, std::move(history)); !begun)
    return answer(job_event::save_ended{a.step, begun.message()});
  answer(job_event::save_opened{a.step});
}

void job_actor::carry_out(const job_action::take_snapshot& a) {
  send_to_ranks(a, 1);  // all replicas hold the same tensors
}

void job_actor::carry_out(const job_action::commit_save&) {
  // In the background: syncing a folder and removing an old one takes time.
  context_->saver->post([ring = saves_->setup().ring, manifest = saves_->manifest(),
                         self = caf::actor_cast<caf::actor>(this)] {
    const auto committed = ring->commit(manifest);
    post(self, save_ended{manifest.step, committed ? std::string{} : committed.message()});
  });
}

void job_actor::carry_out(const job_action::end_save& a) {
  const std::chrono::duration<double> limit = saves_->setup().save_time_max;
  auto failure = a.overdue ? fmt::format(
                                 "not written within {:.0f} s: no more checkpoints in "
                                 "this run",
                                 limit.count())
                           : a.failure;
  const auto report = saves_->end(std::move(failure), context_->now());
  auto& counters = context_->counters->job;
  if (report.failure.empty()) {
    counters.checkpoints.add();
    counters.checkpoint_step.set(report.step);
  } else {
    counters.checkpoint_failures.add();
  }
  if (setup_.on_checkpoint) setup_.on_checkpoint(report);
}

// ---- actions: recovery

void job_actor::carry_out(const job_action::restore_state& a) { send_to_ranks(a, setup_.replicas); }

void job_actor::carry_out(const job_action::copy_state& a) {
  record_ = totals_.record(context_->now(), core_.last_saved(), saves_ ? saves_->saved() : 0);
  RRFP_CHECK(record_.step == a.step, "copies are made of the last step");
  // If this node is lost before it can say that the first copies are held, the others need it.
  if (a.complete == 0) send_record();
  send_to_stages(a, 1);  // all replicas hold the same tensors
}

void job_actor::carry_out(const job_action::keep_copies&) { send_record(); }

void job_actor::send_record() {
  for (const auto n : nodes_) {
    keep_copies m{record_};
    if (!keeps_details(n)) m.record.details.clear();
    post(context_->actors.node(n), std::move(m));
  }
}

void job_actor::carry_out(const job_action::drop_copies& a) {
  if (setup_.on_copy_failed) setup_.on_copy_failed(a.failure);
}

// ---- actions: hangs and reports

void job_actor::carry_out(const job_action::ask_progress& a) {
  inquiry_ = inquiry{};
  inquiry_->why = a.why;
  if (a.silence > 0) {
    inquiry_->why = fmt::format("no task finished for {:.1f} s", seconds(a.silence));
    if (!a.why.empty()) inquiry_->causes.push_back(a.why);
  }
  send_to_stages(report_progress{}, setup_.replicas);
}

void job_actor::carry_out(const job_action::write_reports& a) {
  auto asked = *std::exchange(inquiry_, std::nullopt);
  auto causes = std::move(asked.causes);
  std::ranges::move(causes_of({setup_.shape, setup_.ranks, setup_.replicas}, asked.states),
                    std::back_inserter(causes));
  send_to_nodes(write_report{asked.why, causes});
  if (!a.hang) return;
  std::sort(asked.texts.begin(), asked.texts.end());
  hang_ = asked.why;
  for (const auto& cause : causes) hang_ += "\n  cause: " + cause;
  for (const auto& text : asked.texts) hang_ += "\n  " + text;
}

void job_actor::carry_out(const job_action::note_progress&) { context_->note_progress(); }

void job_actor::carry_out(const job_action::set_timer& a) {
  post_after(this, std::chrono::milliseconds{a.ms}, timer_fired{a.which, a.number});
}

// ---- actions: the end

void job_actor::carry_out(const job_action::report_weights& a) {
  send_to_stages(a, setup_.replicas);
}

void job_actor::carry_out(const job_action::compare_weights&) {
  std::vector<std::uint64_t> weights;
  for (auto& of_replica : hashes_) weights.push_back(compute::hash_of_model(std::move(of_replica)));
  result_.summary.weights_xxh64 = weights[0];
  for (const auto w : weights)
    if (w != weights[0])
      return answer(job_event::failed{{"the replicas' weights differ", error_kind::failed}});
  answer(job_event::weights_agree{});
}

void job_actor::carry_out(const job_action::end& a) {
  if (std::exchange(ended_, true)) return;
  auto summary = totals_.finish_run(context_->now());
  summary.weights_xxh64 = result_.summary.weights_xxh64;
  if (saves_) {
    summary.checkpoints += saves_->saved();
    summary.last_checkpoint_failed = saves_->last_failed();
  }
  result_.summary = std::move(summary);
  static_cast<job_action::end&>(result_) = a;
  if (a.hung) result_.message = hang_;
  job_ended over{result_};
  if (recovery_ != nullptr && a.how == job_end::done) over.summary = to_record(result_.summary);
  // First: after a loss, on_end lets this node close its transport at once.
  for (const auto n : nodes_) {
    auto m = over;
    if (!keeps_details(n)) m.summary.details.clear();
    post(context_->actors.node(n), std::move(m));
  }
  on_end_(std::move(result_));
  quit();
}

template <class Message>
void job_actor::send_to_nodes(const Message& m) {
  for (const auto n : nodes_) post(context_->actors.node(n), m);
}

template <class Message>
void job_actor::send_to_stages(const Message& m, std::uint32_t replicas) {
  for (std::uint32_t d = 0; d < replicas; ++d)
    for (std::uint32_t s = 0; s < setup_.shape.stages; ++s)
      post(context_->actors.find(supervisor_of(replica_id{d}, stage_id{s})), m);
}

template <class Message>
void job_actor::send_to_ranks(const Message& m, std::uint32_t replicas) {
  for (const auto& a : setup_.all_ranks())
    if (a.replica.value() < replicas) post(context_->actors.find({actor_kind::rank, a}), m);
}

}  // namespace rrfp::actors
