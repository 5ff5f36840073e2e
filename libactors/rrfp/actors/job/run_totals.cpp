#include "run_totals.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/statistics.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>
#include <rrfp/compute/lr_schedule.hpp>

namespace rrfp::actors {

namespace {

/// After so many steps without an update the loss scale has no more digits to lose.
constexpr std::uint32_t skips_max = 100;

/// The hash of a series from that of the part before it.
void add_to(std::uint64_t& hash, double value) { hash = XXH64(&value, sizeof value, hash); }

}  // namespace

run_totals::run_totals(job::train_options train, std::function<double(std::uint64_t)> lr,
                       std::uint32_t stages, std::uint64_t first_step)
    : train_(train), lr_(std::move(lr)) {
  history_.run.first_step = first_step;
  history_.run.stages.resize(stages);
}

void run_totals::begin_step(step_id step, compute::step_purpose purpose,
                            const microbatch_shares& shares, std::int64_t now) {
  step_ = step;
  shares_ = shares;
  step_began_ = now;
  outcomes_.clear();
  summary_ = {};
  summary_.step = number_of(step);
  summary_.purpose = purpose;
  summary_.shares = shares.shares;
}

void run_totals::record(stage_step_ended m) {
  if (m.step != step_) return;
  const stage_key from{m.replica, m.stage};
  outcomes_.try_emplace(from, std::move(m));
}

result<apply_update> run_totals::add_up() {
  auto& s = summary_;
  std::vector<compute::parameter_norm> norms;
  auto first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  std::int64_t busy = 0;
  double loss_sum = 0;
  std::vector<double> backward_ms(history_.run.stages.size());
  s.weight_shares.resize(history_.run.stages.size());
  for (const auto& [from, o] : outcomes_) {
    s.weight_shares[from.stage.value()] += milliseconds(o.in_weight);
    backward_ms[from.stage.value()] += milliseconds(o.in_weight + o.in_backward);
    // The gradients are already summed over the replicas.
    if (from.replica == replica_id{0}) norms.insert(norms.end(), o.norms.begin(), o.norms.end());
    for (auto l : o.losses) {
      l.mb = shares_.in_all(from.replica, l.mb);
      s.losses.push_back(l);
    }
    if (o.last_end != 0) first = std::min(first, o.first_begin);  // else it had no task
    last = std::max(last, o.last_end);
    busy += o.busy;
    add_to_stage(o);
  }
  std::ranges::stable_sort(s.losses, {}, &compute::microbatch_loss::mb);
  for (const auto& l : s.losses) {
    loss_sum += l.mean * static_cast<double>(l.tokens);
    s.tokens += l.tokens;
  }
  for (std::size_t i = 0; i < backward_ms.size(); ++i)
    if (backward_ms[i] > 0) s.weight_shares[i] /= backward_ms[i];
  s.loss = s.tokens > 0 ? loss_sum / static_cast<double>(s.tokens) : 0;
  const auto span = milliseconds(last - first) * static_cast<double>(outcomes_.size());
  s.bubble_fraction = 1 - milliseconds(busy) / span;
  if (s.purpose == compute::step_purpose::evaluation) return apply_update{step_};
  history_.busy_ms += milliseconds(busy);
  history_.span_ms += span;
  if (waiting_terms_ == 0) first_terms_ = s.tokens;
  waiting_terms_ += s.tokens;
  if (s.purpose == compute::step_purpose::accumulation) return apply_update{step_};
  const auto factor = factor_of_update();
  for (auto& n : norms) n.squared *= factor * factor;
  const auto clipped = compute::clip_gradients(std::move(norms), train_.clip_norm);
  s.is_skipped = !clipped && train_.loss_scale > 0 && history_.skips_in_row < skips_max;
  if (!clipped && !s.is_skipped) return within(to_string(step_), clipped.failure());
  s.gradient_norm = clipped ? clipped->norm : std::numeric_limits<double>::infinity();
  s.lr = lr_ ? lr_(s.step) : compute::lr_of(train_, step_);
  if (!std::isfinite(s.lr))
    return error{fmt::format("{}: lr: expected a number, got {}", to_string(step_), s.lr),
                 error_kind::failed};
  history_.run.skipped_steps += s.is_skipped;
  history_.skips_in_row = s.is_skipped ? history_.skips_in_row + 1 : 0;
  return apply_update{step_, clipped ? clipped->scale * factor : 0, s.lr};
}

double run_totals::factor_of_update() {
  const auto all = static_cast<double>(std::exchange(waiting_terms_, 0));
  // Every step of an accumulation divided its losses by the terms of the first one.
  return train_.averages_accumulation && all > 0 ? static_cast<double>(first_terms_) / all : 1;
}

void run_totals::add_to_stage(const stage_step_ended& o) {
  auto& stage = history_.run.stages[o.stage.value()];
  stage.busy_ms += milliseconds(o.busy);
  stage.blocked_ms += milliseconds(o.blocked);
  stage.launch_gap_ms += milliseconds(o.launch_gap);
  stage.ranks_ms += milliseconds(o.behind + o.for_ranks);
  stage.peak_bytes = std::max(stage.peak_bytes, o.peak_bytes);
  stage.device_memory = compute::most_of(stage.device_memory, o.device_memory);
  stage.memory.slots_peak = std::max(stage.memory.slots_peak, o.memory.slots_peak);
  stage.memory.bytes_peak = std::max(stage.memory.bytes_peak, o.memory.bytes_peak);
  stage.memory.activations_peak =
      std::max(stage.memory.activations_peak, o.memory.activations_peak);
}

const step_summary& run_totals::finish_step(std::int64_t now) {
  summary_.step_ms = milliseconds(now - step_began_);
  if (summary_.purpose == compute::step_purpose::evaluation) return summary_;
  step_ms_.push_back(summary_.step_ms);
  add_to(history_.run.losses_xxh64, summary_.loss);
  if (history_.run.steps++ == 0) history_.run.loss_first = summary_.loss;
  history_.run.loss_last = summary_.loss;
  history_.run.tokens += summary_.tokens;
  return summary_;
}

std::optional<evaluation_summary> run_totals::finish_batch(std::uint32_t batches) {
  evaluation_.loss += summary_.loss * static_cast<double>(summary_.tokens);
  evaluation_.tokens += summary_.tokens;
  evaluation_.seconds += summary_.step_ms / 1e3;
  if (++batches_ < batches) return std::nullopt;
  batches_ = 0;
  auto e = std::exchange(evaluation_, {});
  e.step = history_.run.first_step + history_.run.steps;
  if (e.tokens > 0) e.loss /= static_cast<double>(e.tokens);
  add_to(history_.run.eval_losses_xxh64, e.loss);
  history_.run.eval_loss = e.loss;
  ++history_.evaluations;
  return e;
}

run_summary run_totals::finish_run(std::int64_t now) const {
  auto s = history_.run;
  s.step_ms_p50 = median(step_ms_);
  s.bubble_fraction = history_.span_ms > 0 ? 1 - history_.busy_ms / history_.span_ms : 0;
  s.seconds = history_.seconds + seconds(now);
  return s;
}

job_record run_totals::record(std::int64_t now, std::uint64_t saved_step,
                              std::uint32_t checkpoints) const {
  auto so_far = history_;
  so_far.seconds += seconds(now);
  so_far.saved_step = saved_step;
  so_far.run.checkpoints += checkpoints;
  return {so_far.run.first_step + so_far.run.steps, encoded(so_far), encoded(so_far.run.stages)};
}

void run_totals::go_on_from(const job_record& record) {
  const auto stages = history_.run.stages.size();
  decoder in{record.bytes}, details{record.details};
  in(history_);
  if (!record.details.empty()) details(history_.run.stages);
  RRFP_CHECK(in.complete() && details.complete() && history_.run.stages.size() == stages,
             "the record is of this version and job");
}

void run_totals::go_on_from(std::string_view written, std::uint64_t began_after) {
  const auto steps = history_.run.first_step;
  const auto stages = history_.run.stages.size();
  auto read = decoded<history>(written);
  if (!read || read->run.first_step != began_after ||
      read->run.first_step + read->run.steps != steps)
    return;
  history_ = *std::move(read);
  history_.run.stages.resize(stages);
}

}  // namespace rrfp::actors
