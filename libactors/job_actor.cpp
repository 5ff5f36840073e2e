#include "job_actor.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>
#include <rrfp/compute/lr_schedule.hpp>

#include "hang_cause.hpp"

namespace rrfp::actors {

namespace {

constexpr std::chrono::milliseconds watch_period{250};
/// How long stages may take to report what they wait for.
constexpr std::chrono::milliseconds report_time{1000};
/// How long nodes may take to write their reports before the run ends.
constexpr std::chrono::milliseconds write_time{1000};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

job_actor::job_actor(caf::actor_config& config, job_setup setup)
    : actor_base(config), setup_(std::move(setup)) {
  set_exception_handler([this](std::exception_ptr& problem) -> caf::error {
    try {
      std::rethrow_exception(problem);
    } catch (const std::exception& e) {
      end(ending::failed, fmt::format("job: {}", e.what()));
    }
    return caf::exit_reason::user_shutdown;
  });
}

caf::behavior job_actor::make_behavior() {
  // A whole node may be lost. The membership knows the cause but may report it later, so wait.
  set_down_handler([this](const caf::down_msg& m) {
    post_after(
        this, unexplained_loss_time,
        failed{fmt::format("a stage supervisor ended: {}", caf::to_string(m.reason)), false});
  });
  const auto& context = *setup_.context;
  result_.summary.first_step = setup_.first_step;
  if (setup_.checkpoint)
    saves_.emplace(*std::move(setup_.checkpoint), context.shape.stages * context.ranks,
                   setup_.first_step);
  result_.summary.stages.resize(context.shape.stages);
  result_.transcripts.resize(context.shape.stages);
  hashes_.resize(context.replicas);
  for (const auto& node : setup_.nodes)
    post(node, host_supervisors{caf::actor_cast<caf::actor>(this)});
  post_after(this, watch_period, tick{});
  return {
      [this](supervisors_hosted& m) { on_supervisors_hosted(m); },
      [this](ranks_hosted& m) { on_ranks_hosted(m); },
      [this](stage_step_ended& m) { on_stage_step_ended(m); },
      [this](const update_applied& m) { on_update_applied(m); },
      [this](stage_weights& m) { on_stage_weights(m); },
      [this](stage_progress& m) { on_stage_progress(m); },
      [this](const failed& m) { end(m.by_input ? ending::bad_input : ending::failed, m.message); },
      [this](const node_lost& m) { end(ending::node_lost, m.message); },
      [this](const node_unreachable& m) {
        post_after(this, unexplained_loss_time, node_lost{m.message});
      },
      [this](const snapshot_taken& m) { on_snapshot_taken(m); },
      [this](const snapshot_written& m) { on_snapshot_written(m); },
      [this](const save_ended& m) { on_save_ended(m); },
      [this](const interrupted& m) { on_interrupted(m); },
      [this](const demand& m) { on_demand(m); },
      [this](const report_requested& m) { on_report_requested(m); },
      [this](const inquiry_over& m) { on_inquiry_over(m); },
      [this](hang_reported) {
        result_.hung = true;
        end(ending::failed, hang_);
      },
      [this](tick) { watch(); },
  };
}

void job_actor::on_exit() {
  stages_.clear();
  ranks_.clear();
  setup_.nodes.clear();
}

std::uint32_t job_actor::rank_count() const {
  const auto& context = *setup_.context;
  return context.replicas * context.shape.stages * context.ranks;
}

void job_actor::on_supervisors_hosted(supervisors_hosted& m) {
  setup_.context->note_progress();
  for (auto& stage : m.stages) {
    monitor(stage.supervisor);
    stages_.push_back(std::move(stage));
  }
  if (++answers_ < setup_.nodes.size()) return;
  RRFP_CHECK(stages_.size() == rank_count() / setup_.context->ranks, "every stage is hosted once");
  answers_ = 0;
  phase_ = phase::hosting_ranks;
  for (const auto& node : setup_.nodes) post(node, host_ranks{stages_});
}

void job_actor::on_ranks_hosted(ranks_hosted& m) {
  setup_.context->note_progress();
  std::move(m.ranks.begin(), m.ranks.end(), std::back_inserter(ranks_));
  if (++answers_ < setup_.nodes.size()) return;
  RRFP_CHECK(ranks_.size() == rank_count(), "every rank is hosted once");
  std::sort(ranks_.begin(), ranks_.end(),
            [](const auto& a, const auto& b) { return a.address.rank < b.address.rank; });
  for (const auto& stage : stages_) {
    stage_ranks members;
    for (const auto& r : ranks_)
      if (r.address.replica == stage.replica && r.address.stage == stage.stage)
        members.ranks.push_back(r.rank);
    post(stage.supervisor, std::move(members));
  }
  begin_next_step();
}

void job_actor::begin_next_step() {
  if (setup_.on_request) return serve_next_demand();
  if (steps_done() == setup_.train.steps) return hash_weights();
  begin(step_id{steps_done()}, compute::step_purpose::training);
}

void job_actor::on_demand(const demand& m) {
  demands_.push_back(m);
  if (phase_ == phase::idle) serve_next_demand();
}

void job_actor::serve_next_demand() {
  phase_ = phase::idle;
  setup_.context->note_progress();
  if (finishing_) return hash_weights();
  if (demands_.empty()) return;
  const auto wanted = demands_.front().wanted;
  demands_.pop_front();
  using kind = demand::kind;
  if (wanted == kind::train) return begin(step_id{steps_done()}, compute::step_purpose::training);
  if (wanted == kind::evaluate)
    return begin(step_id{first_evaluation + evaluations_++}, compute::step_purpose::evaluation);
  finishing_ = wanted == kind::finish;
  if (saves_ && saves_->is_due(steps_done(), true)) {
    save_asked_ = true;
    return save();
  }
  serve_next_demand();
}

void job_actor::begin(step_id step, compute::step_purpose purpose) {
  phase_ = phase::stepping;
  step_ = step;
  summary_ = {};
  summary_.step = number_of(step);
  summary_.purpose = purpose;
  step_began_ = setup_.context->now();
  outcomes_.clear();
  send_to_stages(begin_step{step, purpose});
}

void job_actor::hash_weights() {
  phase_ = phase::hashing_weights;
  answers_ = 0;
  send_to_stages(report_weights{});
}

void job_actor::on_stage_step_ended(stage_step_ended& m) {
  if (phase_ != phase::stepping) return;
  outcomes_.push_back(std::move(m));
  if (outcomes_.size() < stages_.size()) return;
  finish_step();
}

void job_actor::finish_step() {
  auto& s = summary_;
  // Losses are summed in the order of the replicas, not in the order of arrival.
  std::sort(outcomes_.begin(), outcomes_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.replica, a.stage) < std::tie(b.replica, b.stage);
  });
  std::vector<compute::parameter_norm> norms;
  std::int64_t first = outcomes_[0].first_begin;
  std::int64_t last = 0;
  std::int64_t busy = 0;
  double loss_sum = 0;
  for (auto& o : outcomes_) {
    // The gradients are already summed over the replicas.
    if (o.replica == replica_id{0}) norms.insert(norms.end(), o.norms.begin(), o.norms.end());
    for (const auto& l : o.losses) {
      loss_sum += l.mean * static_cast<double>(l.tokens);
      s.tokens += l.tokens;
      s.losses.push_back(l);
    }
    first = std::min(first, o.first_begin);
    last = std::max(last, o.last_end);
    busy += o.busy;
    auto& stage = result_.summary.stages[o.stage.value()];
    stage.busy_ms += milliseconds(o.busy);
    stage.blocked_ms += milliseconds(o.blocked);
    stage.launch_gap_ms += milliseconds(o.launch_gap);
    stage.peak_bytes = std::max(stage.peak_bytes, o.peak_bytes);
    stage.device_memory = accelerator::most_of(stage.device_memory, o.device_memory);
    stage.memory.slots_peak = std::max(stage.memory.slots_peak, o.memory.slots_peak);
    stage.memory.bytes_peak = std::max(stage.memory.bytes_peak, o.memory.bytes_peak);
    stage.memory.activations_peak =
        std::max(stage.memory.activations_peak, o.memory.activations_peak);
  }
  s.loss = s.tokens > 0 ? loss_sum / static_cast<double>(s.tokens) : 0;
  const auto span = milliseconds(last - first);
  s.bubble_fraction = 1 - milliseconds(busy) / (span * static_cast<double>(stages_.size()));
  if (s.purpose == compute::step_purpose::evaluation) return end_step();
  const auto clipped = compute::clip_gradients(std::move(norms), setup_.train.clip_norm);
  if (!clipped)
    return end(ending::bad_input, fmt::format("{}: {}", to_string(step_), clipped.message()));
  s.gradient_norm = clipped->norm;
  s.lr = compute::lr_of(setup_.train, step_);
  busy_ms_ += milliseconds(busy);
  span_ms_ += span * static_cast<double>(stages_.size());

  phase_ = phase::updating;
  answers_ = 0;
  send_to_stages(apply_update{step_, clipped->scale, s.lr});
}

void job_actor::on_update_applied(const update_applied&) {
  if (phase_ != phase::updating) return;
  if (++answers_ < rank_count()) return;
  end_step();
}

void job_actor::end_step() {
  setup_.context->note_progress();
  summary_.step_ms = milliseconds(setup_.context->now() - step_began_);
  if (summary_.purpose == compute::step_purpose::training) count_step();
  if (setup_.on_step) setup_.on_step(summary_);
  // The first node runs the job and has called on_step.
  for (std::size_t n = 1; n < setup_.nodes.size(); ++n) post(setup_.nodes[n], step_over{summary_});
  continue_run();
}

void job_actor::count_step() {
  step_ms_.push_back(summary_.step_ms);
  losses_.push_back(summary_.loss);
  auto& total = result_.summary;
  if (total.steps++ == 0) total.loss_first = summary_.loss;
  total.loss_last = summary_.loss;
  total.tokens += summary_.tokens;
  count(summary_);
}

void job_actor::count(const step_summary& s) {
  auto& counters = setup_.context->counters->job;
  counters.steps.add();
  counters.tokens.add(static_cast<std::uint64_t>(s.tokens));
  counters.loss.set(s.loss);
  counters.gradient_norm.set(s.gradient_norm);
  counters.lr.set(s.lr);
  counters.bubble_fraction.set(s.bubble_fraction);
  counters.step_time.observe(static_cast<std::int64_t>(s.step_ms * 1e6));
}

void job_actor::continue_run() {
  const bool is_last = leaving_ || std::exchange(save_asked_, false) ||
                       (!setup_.on_request && steps_done() == setup_.train.steps);
  if (saves_ && saves_->is_due(steps_done(), is_last)) return save();
  if (leaving_) return leave();
  begin_next_step();
}

void job_actor::save() {
  if (saves_->running()) {
    phase_ = phase::waiting_to_save;
    return;
  }
  const auto now = setup_.context->now();
  if (auto begun = saves_->begin(steps_done(), now); !begun) {
    end_save(begun.message());
    return continue_run();
  }
  phase_ = phase::copying;
  // All replicas hold the same tensors.
  for (const auto& stage : stages_)
    if (stage.replica == replica_id{0}) post(stage.supervisor, take_snapshot{steps_done()});
}

void job_actor::on_snapshot_taken(const snapshot_taken& m) {
  setup_.context->note_progress();
  if (!saves_->on_snapshot_taken(m, setup_.context->now()) || phase_ != phase::copying) return;
  continue_run();
}

void job_actor::on_snapshot_written(const snapshot_written& m) {
  if (!saves_->on_snapshot_written(m)) return;
  auto manifest = saves_->manifest();
  if (!manifest) return on_save_ended(save_ended{m.step, manifest.message()});
  // In the background: syncing a folder and removing an old one takes time.
  setup_.context->saver->post([ring = saves_->setup().ring, manifest = std::move(*manifest),
                               self = caf::actor_cast<caf::actor>(this)] {
    const auto committed = ring->commit(manifest);
    post(self, save_ended{manifest.step, committed ? std::string{} : committed.message()});
  });
}

void job_actor::on_save_ended(const save_ended& m) {
  if (!saves_->is_running(m.step)) return;  // the job has given it up
  end_save(m.failure);
  // In phase copying, the save was given up, and the next step still waits for it.
  if (phase_ == phase::waiting_to_save || phase_ == phase::copying) return continue_run();
  if (phase_ == phase::finishing_save) end(conclusion_);
}

void job_actor::end_save(std::string failure) {
  const auto report = saves_->end(std::move(failure), setup_.context->now());
  auto& counters = setup_.context->counters->job;
  if (report.failure.empty()) {
    counters.checkpoints.add();
    counters.checkpoint_step.set(report.step);
  } else {
    counters.checkpoint_failures.add();
  }
  if (setup_.on_checkpoint) setup_.on_checkpoint(report);
}

void job_actor::on_interrupted(const interrupted& m) {
  const bool trains = phase_ != phase::hosting_stages && phase_ != phase::hosting_ranks &&
                      phase_ != phase::reporting_hang;
  if (!saves_ || !trains || m.again) {
    result_.nothing_lost = false;
    return end(ending::interrupted);
  }
  leaving_ = true;
  // Complete the running step only if its end will be saved.
  const bool steps = phase_ == phase::stepping || phase_ == phase::updating;
  const bool trains_on = steps && summary_.purpose == compute::step_purpose::training;
  if (steps && !saves_->is_due(steps_done() + (trains_on ? 1 : 0), true)) return leave();
  if (phase_ == phase::idle) continue_run();
}

void job_actor::leave() {
  result_.nothing_lost = true;
  conclude(ending::interrupted);
}

void job_actor::conclude(ending how) {
  if (!saves_ || !saves_->running()) return end(how);
  conclusion_ = how;
  phase_ = phase::finishing_save;
}

void job_actor::on_stage_weights(stage_weights& m) {
  if (phase_ != phase::hashing_weights) return;
  auto& hashes = hashes_[m.from.replica.value()];
  hashes.insert(hashes.end(), m.hashes.begin(), m.hashes.end());
  if (m.from.replica == replica_id{0} && !m.transcript.empty())
    result_.transcripts[m.from.stage.value()] = std::move(m.transcript);
  if (++answers_ < rank_count()) return;
  std::vector<std::uint64_t> weights;
  for (auto& of_replica : hashes_) weights.push_back(compute::hash_of_model(std::move(of_replica)));
  result_.summary.weights_xxh64 = weights[0];
  for (const auto w : weights)
    if (w != weights[0]) return end(ending::failed, "the replicas' weights differ");
  conclude(ending::done);
}

void job_actor::watch() {
  const auto now = setup_.context->now();
  if (saves_ && saves_->is_overdue(now)) {
    saves_->give_up();
    const std::chrono::duration<double> limit = saves_->setup().save_time_max;
    on_save_ended(save_ended{
        saves_->step(), fmt::format("not written within {:.0f} s: no more checkpoints in this run",
                                    limit.count())});
    if (ended_) return;
  }
  // Not a hang: a slow disk has its own limit (save_time_max), and demands may come late.
  if (phase_ == phase::waiting_to_save || phase_ == phase::finishing_save || phase_ == phase::idle)
    setup_.context->note_progress();
  const auto silent = seconds(setup_.context->silence());
  if (setup_.hang_timeout_s > 0 && silent > setup_.hang_timeout_s) {
    phase_ = phase::reporting_hang;
    return inquire(fmt::format("no task finished for {:.1f} s", silent));
  }
  post_after(this, watch_period, tick{});
}

void job_actor::on_report_requested(const report_requested& m) {
  if (!inquiry_ && phase_ != phase::reporting_hang) inquire(m.why);
}

void job_actor::inquire(std::string why) {
  inquiry_ = inquiry{++inquiries_, std::move(why), {}, {}};
  send_to_stages(report_progress{});
  if (stages_.empty()) return end_inquiry();
  post_after(this, report_time, inquiry_over{inquiries_});
}

void job_actor::on_stage_progress(stage_progress& m) {
  if (!inquiry_) return;
  // A stage may answer the previous inquiry as well.
  for (const auto& s : inquiry_->states)
    if (s.replica == m.state.replica && s.stage == m.state.stage) return;
  inquiry_->texts.push_back(std::move(m.text));
  inquiry_->states.push_back(std::move(m.state));
  if (inquiry_->states.size() == stages_.size()) end_inquiry();
}

void job_actor::on_inquiry_over(const inquiry_over& m) {
  if (inquiry_ && inquiry_->number == m.number) end_inquiry();
}

void job_actor::end_inquiry() {
  auto asked = *std::exchange(inquiry_, std::nullopt);
  const auto& context = *setup_.context;
  const auto causes =
      stages_.empty() ? std::vector<std::string>{"the stages are not hosted yet"}
                      : causes_of({context.shape, context.ranks, context.replicas}, asked.states);
  for (const auto& node : setup_.nodes) post(node, write_report{asked.why, causes});
  if (phase_ != phase::reporting_hang) return;
  std::sort(asked.texts.begin(), asked.texts.end());
  hang_ = asked.why;
  for (const auto& cause : causes) hang_ += "\n  cause: " + cause;
  for (const auto& text : asked.texts) hang_ += "\n  " + text;
  post_after(this, write_time, hang_reported{});
}

void job_actor::end(ending how, std::string message) {
  if (std::exchange(ended_, true)) return;
  auto& s = result_.summary;
  s.losses_xxh64 = XXH64(losses_.data(), losses_.size() * sizeof(double), 0);
  s.step_ms_p50 = median(step_ms_);
  s.bubble_fraction = span_ms_ > 0 ? 1 - busy_ms_ / span_ms_ : 0;
  s.seconds = seconds(setup_.context->now());
  if (saves_) {
    s.checkpoints = saves_->saved();
    s.last_checkpoint_failed = saves_->last_failed();
  }
  result_.how = how;
  result_.message = std::move(message);
  for (const auto& stage : stages_) demonitor(stage.supervisor->address());
  const job_ended over{how, result_.message, result_.nothing_lost, result_.hung};
  setup_.on_end(std::move(result_));
  for (const auto& node : setup_.nodes) post(node, over);
  quit();
}

template <class Message>
void job_actor::send_to_stages(const Message& m) {
  for (const auto& stage : stages_) post(stage.supervisor, m);
}

}  // namespace rrfp::actors
