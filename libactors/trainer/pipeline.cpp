#include <ATen/ATen.h>
#include <fmt/format.h>

#include <rrfp/base/step_name.hpp>
#include <rrfp/job/check_job.hpp>
#include <rrfp/keyed_generator.hpp>
#include <rrfp/metrics/prometheus_text.hpp>
#include <rrfp/version.hpp>

#include "batches.hpp"
#include "pipeline_impl.hpp"
#include "user_functions.hpp"

namespace rrfp {

namespace {

using compute::step_purpose;

/// How long a process waits for the batch of a step that others have begun, and for user functions
/// that may never return.
std::chrono::milliseconds patience(const job::job& j) {
  constexpr double a_week_s = 7.0 * 24 * 3600;
  const auto seconds = j.run.hang_timeout_s > 0 ? j.run.hang_timeout_s : a_week_s;
  return std::chrono::milliseconds{static_cast<std::int64_t>(seconds * 1e3)};
}

step_purpose purpose_of(const step_options& how) {
  return how.update ? step_purpose::training : step_purpose::accumulation;
}

job::job with_averages(job::job j, bool counts_terms) {
  if (counts_terms) j.train.averages_accumulation = true;
  return j;
}

}  // namespace

pipeline::impl::impl(job::job j, pipeline_options options)
    : job_(with_averages(std::move(j), options.count != nullptr)),
      options_(std::move(options)),
      data_(std::make_shared<fed_source>(patience(job_))),
      model_(options_, job_.train.seed, data_) {
  if (!options_.on_note) options_.on_note = print_to_stderr;
  if (!options_.on_report) options_.on_report = print_to_stderr;
  if (!options_.count) options_.count = [](const at::Tensor& target) { return target.size(0); };
  options_.on_note = named("on_note", std::move(options_.on_note));
  options_.count = named("count", std::move(options_.count));
}

void pipeline::impl::close() {
  if (!runner_.joinable()) return;
  if (!is_over()) {
    session_->interrupt();
    session_->interrupt();
  }
  if (wait_for_rest()) return runner_.join();
  runner_.detach();
  note(
      "a user function has not returned: its thread was detached and keeps the memory of the "
      "pipeline");
}

result<std::unique_lock<std::mutex>> pipeline::impl::begin_call() {
  if (forward_scope::is_open())
    return error{
        "the pipeline was called inside a forward, a loss or a keyed_generator: expected a call "
        "from outside"};
  std::unique_lock call{calls_, std::try_to_lock};
  if (!call.owns_lock())
    return error{"the pipeline is in a step or another call: expected one call at a time"};
  return call;
}

result<step_result> pipeline::impl::pass(step_purpose purpose,
                                         std::vector<compute::microbatch> microbatches,
                                         step_options how) {
  auto call = begin_call();
  if (!call) return call.failure();
  const auto expected = job_.pipeline.microbatches * job_.pipeline.replicas;
  if (microbatches.size() != expected)
    return error{fmt::format("expected {} microbatches, got {}", expected, microbatches.size())};
  if (is_emulated() && how.return_outputs)
    return error{"return_outputs: expected a model, got device.kind = \"emulated\""};
  if (options_.make_compute && how.return_outputs)
    return error{"return_outputs: expected make_stage or make_chunk, got make_compute"};
  const needed_parts needed{has_first_ && !options_.make_chunk, has_last_};
  if (!options_.make_compute && !is_emulated())
    if (auto good = check_microbatches(microbatches, needed); !good) return good.failure();
  for (auto& mb : microbatches)
    for (auto* rows : {&mb.inputs, &mb.targets})
      if (rows->defined()) *rows = rows->detach();
  const bool trains = purpose != step_purpose::evaluation;
  const step_id id{trains ? steps_ : first_evaluation + evaluations_};
  const pass_name step{purpose, number_of(id)};
  {
    // If this process was not needed for it, the others may have completed it and ended already.
    const std::lock_guard lock{mutex_};
    if (over_ && !summaries_.contains(step)) return failure();
  }
  data_->feed(id, std::move(microbatches), how.return_outputs,
              job_.train.averages_accumulation && purpose == step_purpose::accumulation);
  if (leads() && !is_over()) {
    switch (purpose) {
      case step_purpose::training: session_->train(); break;
      case step_purpose::accumulation: session_->accumulate(); break;
      case step_purpose::evaluation: session_->evaluate(); break;
    }
  }
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return over_ || summaries_.contains(step); });
  const auto at = summaries_.find(step);
  if (at == summaries_.end()) return failure();
  const auto summary = std::move(at->second);
  summaries_.erase(at);
  lock.unlock();
  ++(trains ? steps_ : evaluations_);
  if (trains) accumulates_ = purpose == step_purpose::accumulation;
  auto done = result_of(summary, data_->finish_step(id));
  call->unlock();
  if (options_.on_step) hooks_->call("on_step", [&] { options_.on_step(summary); });
  done.hook_failure = report_failures();
  return done;
}

result<step_result> pipeline::impl::pass(step_purpose purpose, const batch& rows,
                                         step_options how) {
  auto microbatches = caught([&] {
    const auto count = std::int64_t{job_.pipeline.microbatches} * job_.pipeline.replicas;
    return cut(rows, count, options_.count);
  });
  if (!microbatches) return microbatches.failure();
  return pass(purpose, std::move(*microbatches), how);
}

result<std::vector<compute::named_tensor>> pipeline::impl::state_dict() {
  const auto call = begin_call();
  if (!call) return call.failure();
  if (is_over()) return failure();
  struct gathered {
    std::mutex turn;
    std::map<std::pair<std::string, std::int64_t>, compute::named_tensor> by_place;
  };
  const auto all = std::make_shared<gathered>();
  const auto done = for_each_compute([all](auto& c) {
    auto mine = compute::to_tensors(
        c.snapshot(compute::tied_copies::included, compute::snapshot_memory::shared));
    const std::lock_guard lock{all->turn};
    for (auto& t : mine) {
      const std::pair place{t.name, t.part ? t.part->offset : 0};
      if (all->by_place.contains(place)) continue;
      t.value = compute::host_copy_of(t.value);
      all->by_place.emplace(place, std::move(t));
    }
    return success();
  });
  if (!done) return done.failure();
  std::vector<compute::named_tensor> state;
  for (auto& [place, t] : all->by_place) state.push_back(std::move(t));
  return state;
}

status pipeline::impl::load_state_dict(std::vector<compute::named_tensor> state) {
  const auto call = begin_call();
  if (!call) return call.failure();
  if (is_over()) return failure();
  std::vector<compute::named_buffer> buffers;
  for (auto& t : state) buffers.push_back(compute::to_buffer(std::move(t)));
  const auto shared =
      std::make_shared<const std::vector<compute::named_buffer>>(std::move(buffers));
  // All ranks look before the first one changes.
  auto fits = for_each_compute([shared](auto& c) { return c.fits(*shared); });
  return fits ? for_each_compute([shared](auto& c) { return c.restore(*shared); }) : fits;
}

status pipeline::impl::save() {
  if (job_.checkpoint.dir.empty())
    return job::blame(job_, "checkpoint.dir", "save() expects a folder, got none");
  if (accumulates_) return error{"save(): expected a step that updates, got waiting gradients"};
  if (is_over()) return failure();
  if (leads()) session_->save();
  return success();
}

result<actors::run_summary> pipeline::impl::finish() {
  {
    const auto call = begin_call();
    if (!call) return call.failure();
  }
  if (std::exchange(is_finished_, true)) return failure();
  if (leads() && !is_over()) session_->finish();
  {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return over_; });
  }
  if (ended_.how != actors::ending::done && !ended_.nothing_lost) return failure();
  if (wait_for_rest() && members_) members_->leave();
  report_failures();
  const std::lock_guard lock{mutex_};
  if (!ended_.summary.last_checkpoint_failed) return ended_.summary;
  return error{
      failed_save_.empty() ? "the last state was not saved, as node 0 reports" : failed_save_,
      error_kind::failed};
}

status pipeline::impl::for_each_compute(std::function<status(compute::rank_compute&)> work) {
  struct outcome {
    std::mutex turn;
    status first = success();
  };
  // Shared, because a rank that hangs may come later.
  const auto all = std::make_shared<outcome>();
  const auto done = session_->for_each_rank(
      [all, work = std::move(work)](const actors::rank_address& at, compute::rank_compute& c) {
        const auto one = work(c);
        const std::lock_guard lock{all->turn};
        if (!one && all->first.ok())
          all->first = within(fmt::format("stage {}", at.stage.value()), one.failure());
      },
      patience(job_));
  return done ? all->first : done;
}

std::string pipeline::impl::metrics_text() const {
  return metrics::prometheus_text(members_ ? members_->node() : node_id{0}, version,
                                  board_.current().get(), metrics::steady_now());
}

bool pipeline::impl::wait_for_rest() {
  std::unique_lock lock{mutex_};
  constexpr std::chrono::milliseconds moment{1000};
  const auto limit = over_ && ended_.hung ? moment : patience(job_);
  return changed_.wait_for(lock, limit, [&] { return is_at_rest_; });
}

std::string pipeline::impl::report_failures() {
  std::vector<std::string> notes;
  {
    const std::lock_guard lock{mutex_};
    notes.swap(notes_);
  }
  for (const auto& line : notes) note(line);
  auto failures = hooks_->take_failures();
  if (!failures.empty()) note(failures);
  return failures;
}

void pipeline::impl::note(const std::string& line) {
  try {
    options_.on_note(line);
  } catch (const std::exception& e) {
    print_to_stderr(e.what());
  }
}

void pipeline::impl::on_step(const actors::step_summary& s) {
  const std::lock_guard lock{mutex_};
  summaries_[{s.purpose, s.step}] = s;
  changed_.notify_all();
}

void pipeline::impl::run() {
  try {
    end(session_->run());
  } catch (const std::exception& e) {
    actors::run_result failed;
    failed.how = actors::ending::failed;
    failed.message = e.what();
    end(std::move(failed));
  }
  hooks_->drain();
  const std::lock_guard lock{mutex_};
  is_at_rest_ = true;
  changed_.notify_all();
}

void pipeline::impl::end(actors::run_result how) {
  data_->close();
  const std::lock_guard lock{mutex_};
  if (std::exchange(over_, true)) return;
  ended_ = std::move(how);
  changed_.notify_all();
}

bool pipeline::impl::is_over() {
  const std::lock_guard lock{mutex_};
  return over_;
}

error pipeline::impl::failure() const {
  const auto kind = kind_of(ended_.how);
  if (!kind) return error{"the training is over", error_kind::failed};
  return error{*kind == error_kind::interrupted ? "interrupted" : ended_.message, *kind};
}

step_result pipeline::impl::result_of(const actors::step_summary& s,
                                      std::vector<at::Tensor> outputs) {
  step_result r;
  r.step = s.step;
  r.loss = s.loss;
  for (const auto& l : s.losses) r.losses.push_back(l.mean);
  r.gradient_norm = s.gradient_norm;
  r.is_skipped = s.is_skipped;
  r.lr = s.lr;
  r.count = s.tokens;
  r.ms = s.step_ms;
  r.bubble = s.bubble_fraction;
  r.weight_shares = s.weight_shares;
  // All work of the step is done on the device.
  for (auto& o : outputs) r.outputs.push_back(o.cpu());
  return r;
}

pipeline::pipeline(std::shared_ptr<impl> state) : impl_(std::move(state)) {}
pipeline::~pipeline() { impl_->close(); }

result<std::unique_ptr<pipeline>> pipeline::open(job::job j, pipeline_options options) {
  auto state = std::make_shared<impl>(std::move(j), std::move(options));
  if (auto opened = caught([&] { return state->open(); }); !opened) return opened.failure();
  return std::unique_ptr<pipeline>{new pipeline{std::move(state)}};
}

result<step_result> pipeline::step(const batch& rows, step_options how) {
  return impl_->pass(purpose_of(how), rows, how);
}
result<step_result> pipeline::step(std::vector<compute::microbatch> microbatches,
                                   step_options how) {
  return impl_->pass(purpose_of(how), std::move(microbatches), how);
}
result<step_result> pipeline::eval(const batch& rows, step_options how) {
  return impl_->pass(compute::step_purpose::evaluation, rows, how);
}
result<step_result> pipeline::eval(std::vector<compute::microbatch> microbatches,
                                   step_options how) {
  return impl_->pass(compute::step_purpose::evaluation, std::move(microbatches), how);
}
std::uint64_t pipeline::steps() const { return impl_->steps(); }
bool pipeline::leads() const { return impl_->leads(); }
result<std::vector<compute::named_tensor>> pipeline::state_dict() {
  return caught([&] { return impl_->state_dict(); });
}
status pipeline::load_state_dict(std::vector<compute::named_tensor> state) {
  return caught([&] { return impl_->load_state_dict(std::move(state)); });
}
status pipeline::save() { return impl_->save(); }
result<actors::run_summary> pipeline::finish() { return impl_->finish(); }
void pipeline::interrupt() { impl_->interrupt(); }
void pipeline::report(std::string why) { impl_->report(std::move(why)); }
std::string pipeline::metrics() const { return impl_->metrics_text(); }

}  // namespace rrfp
