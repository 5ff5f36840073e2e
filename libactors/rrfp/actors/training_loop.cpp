#include <rrfp/actors/training_loop.hpp>

#include <stdexcept>

#include <fmt/format.h>

#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/device/caller_queue.hpp>
#include <rrfp/metrics/prometheus_text.hpp>

#include "hook_thread.hpp"

namespace rrfp::actors {

using compute::step_purpose;

std::chrono::milliseconds patience_of(const job::job& j) {
  constexpr double a_week_s = 7.0 * 24 * 3600;
  return to_ms(j.run.hang_timeout_s > 0 ? j.run.hang_timeout_s : a_week_s);
}

namespace {

job_demand demand_for(step_purpose purpose) {
  switch (purpose) {
    case step_purpose::training: return job_demand::train;
    case step_purpose::accumulation: return job_demand::accumulate;
    case step_purpose::evaluation: break;
  }
  return job_demand::evaluate;
}

}  // namespace

void training_loop::interrupt() {
  const std::lock_guard lock{mutex_};
  if (session_ != nullptr) session_->interrupt();
}

void training_loop::abandon(const std::string& why, error_kind kind) {
  const auto name = places_ ? fmt::format("node {} ({}): ", node_.value(), places_->describe(node_))
                            : std::string{};
  const std::lock_guard lock{mutex_};
  if (session_ != nullptr) session_->abandon({name + why, kind});
}

void training_loop::report(std::string why) {
  const std::lock_guard lock{mutex_};
  if (session_ != nullptr) session_->report(std::move(why));
}

void training_loop::wait_for_batch(step_id step, const std::function<void()>& meanwhile) {
  constexpr std::chrono::milliseconds moment{5};
  const auto limit = clock::now() + patience_of(job_);
  std::unique_lock lock{mutex_};
  awaited_ = step;
  while (!changed_.wait_for(lock, moment, [&] { return over_ || fed_ == step; })) {
    if (clock::now() > limit)
      throw std::runtime_error(
          fmt::format("this process did not get the batch of {} in time, but other processes did",
                      to_string(step)));
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  awaited_.reset();
  if (fed_ != step) throw std::runtime_error("the training is over");
}

void training_loop::check_begun(step_id own, std::optional<clock::time_point>& differs_since) {
  // Others may begin the next step before this process knows that its own is complete, but only for
  // a moment.
  constexpr std::chrono::seconds moment{5};
  const auto begun = [this] {
    if (caller_) return caller_->unwanted_step();
    const std::lock_guard lock{mutex_};
    return awaited_;
  }();
  if (!begun || *begun == own) return differs_since.reset();
  if (!differs_since) differs_since = clock::now();
  if (clock::now() - *differs_since > moment && !is_over())
    abandon(fmt::format("expected {}, as other processes have begun, got {}", to_string(*begun),
                        to_string(own)),
            error_kind::bad_input);
}

void training_loop::close(const std::string& why) {
  if (!runner_.joinable()) return;
  if (!is_over()) abandon(why, error_kind::interrupted);
  if (wait_for_rest()) {
    runner_.join();
    report_failures();
    return;
  }
  runner_.detach();
  note(
      "the pipeline has not ended, because a user function has not returned or a process does not "
      "answer: its thread was detached and keeps the memory of the pipeline");
}

result<std::unique_lock<std::mutex>> training_loop::begin_call() {
  std::unique_lock call{calls_, std::try_to_lock};
  if (!call.owns_lock())
    return error{"the pipeline is in a step or another call: expected one call at a time"};
  return call;
}

status training_loop::check(const microbatch_counts& microbatches) const {
  const auto& p = job_.pipeline;
  if (microbatches.empty() || microbatches == microbatch_counts::equal(p.replicas, p.microbatches))
    return success();
  if (microbatches.by_replica.size() != p.replicas)
    return error{fmt::format("expected the microbatches of {} replicas, got {} counts", p.replicas,
                             microbatches.by_replica.size())};
  const auto most = std::ranges::max(microbatches.by_replica);
  if (most > microbatches_max)
    return error{fmt::format("expected at most {} microbatches, got {}", microbatches_max, most)};
  if (most == 0) return error{"expected at least 1 microbatch, got 0"};
  return success();
}

result<passed_step> training_loop::pass(step_purpose purpose, microbatch_counts microbatches,
                                        const std::function<void(step_id)>& feed,
                                        const std::function<void()>& look) {
  auto call = begin_call();
  if (!call) return call.failure();
  if (auto fits = check(microbatches); !fits) return fits.failure();
  const bool trains = purpose != step_purpose::evaluation;
  const step_id id{trains ? steps_ : first_evaluation + evaluations_};
  const pass_name step{purpose, number_of(id)};
  {
    // If this process was not needed for it, the others may have completed it and ended already.
    const std::lock_guard lock{mutex_};
    if (over_ && !summaries_.contains(step)) return failure();
  }
  has_trained_ |= trains;
  if (feed) feed(id);
  {
    const std::lock_guard lock{mutex_};
    fed_ = id;
  }
  notify();
  if (caller_) caller_->want(id);
  if (!is_over()) {
    auto& session = member_->session();
    if (leads())
      session.demand(demand_for(purpose), std::move(microbatches));
    else
      session.give_batch(id);
  }
  // The step as another process may have meant it: with an update, or without.
  const auto other =
      purpose == step_purpose::training ? step_purpose::accumulation : step_purpose::training;
  const auto differs = [&] { return trains && summaries_.contains({other, number_of(id)}); };
  std::optional<clock::time_point> differs_since;
  wait_until([&] { return over_ || summaries_.contains(step) || differs(); },
             [&] {
               if (look) look();
               check_begun(id, differs_since);
             });
  std::unique_lock lock{mutex_};
  const auto at = summaries_.find(step);
  if (at == summaries_.end()) {
    if (!differs()) return failure();
    summaries_.erase({other, number_of(id)});  // the next call may want a step of this name
    lock.unlock();
    const error why{fmt::format("expected {} with {} update, as the leading process has given",
                                to_string(id), other == step_purpose::training ? "an" : "no")};
    abandon(why.message, why.kind);
    return why;
  }
  passed_step done{id, std::move(at->second), {}};
  summaries_.erase(at);
  lock.unlock();
  ++(trains ? steps_ : evaluations_);
  if (trains) accumulates_ = purpose == step_purpose::accumulation;
  call->unlock();
  const auto& on_step = options_.hooks.on_step;
  if (on_step) hooks_->call("on_step", [&] { on_step(done.summary); });
  done.hook_failure = report_failures();
  return done;
}

void training_loop::wait_until(const std::function<bool()>& is_done,
                               const std::function<void()>& look) {
  const auto wait = [this](const std::function<bool()>& until,
                           const std::function<void()>& meanwhile) {
    if (caller_)
      return caller_->run_until(
          [&] {
            const std::lock_guard lock{mutex_};
            return until();
          },
          meanwhile);
    constexpr std::chrono::milliseconds moment{50};
    std::unique_lock lock{mutex_};
    while (!changed_.wait_for(lock, moment, until)) {
      lock.unlock();
      if (meanwhile) meanwhile();
      lock.lock();
    }
  };
  try {
    wait(is_done, look);
  } catch (...) {
    abandon("interrupted", error_kind::interrupted);
    wait([this] { return over_; }, {});
    throw;
  }
}

bool training_loop::wait_for_state(const std::function<void()>& look,
                                   std::optional<clock::time_point> limit) {
  wait_until([&] { return over_ || ready_ > 0 || (limit && clock::now() > *limit); }, look);
  const std::lock_guard lock{mutex_};
  if (ready_ == 0) return over_;
  --ready_;
  return true;
}

status training_loop::save(const std::function<void()>& look) {
  const auto call = begin_call();
  if (!call) return call.failure();
  if (job_.checkpoint.dir.empty())
    return job::blame(job_, "checkpoint.dir", "save() expects a folder, got none");
  if (accumulates_) return error{"save(): expected a step that updates, got waiting gradients"};
  if (is_over()) return failure();
  if (caller_) caller_->expect_caller();
  if (leads()) member_->session().demand(job_demand::save);
  const auto limit = leads() ? std::nullopt : std::optional{clock::now() + patience_of(job_)};
  if (!wait_for_state(look, limit))
    return error{
        "save(): the leading process has not called it: expected the same calls in every process"};
  return success();
}

result<run_summary> training_loop::finish(const std::function<void()>& look) {
  {
    const auto call = begin_call();
    if (!call) return call.failure();
  }
  if (std::exchange(is_finished_, true)) return failure();
  if (leads() && !is_over()) member_->session().demand(job_demand::finish);
  wait_until([&] { return over_; },
             [&] {
               if (look) look();
               if (caller_ && caller_->unwanted_step())
                 abandon("has finished, but other processes have begun another step",
                         error_kind::failed);
             });
  if (ended_.how != ending::done && !ended_.nothing_lost) return failure();
  if (wait_for_rest()) {
    auto end = ended_;
    end.how = ending::done;
    end_session(end);
  }
  report_failures();
  const std::lock_guard lock{mutex_};
  if (!ended_.summary.last_checkpoint_failed) return ended_.summary;
  return error{
      failed_save_.empty() ? "the last state was not saved, as node 0 reports" : failed_save_,
      error_kind::failed};
}

status training_loop::for_each_compute(std::function<status(compute::rank_compute&)> work) {
  struct outcome {
    std::mutex turn;
    status first = success();
  };
  // Shared, because a rank that hangs may come later.
  const auto all = std::make_shared<outcome>();
  if (is_over()) return failure();
  const auto done = member_->session().for_each_rank(
      [all, work = std::move(work)](const rank_address& at, compute::rank_compute& c) {
        const auto one = work(c);
        const std::lock_guard lock{all->turn};
        if (!one && all->first.ok())
          all->first = within(fmt::format("stage {}", at.stage.value()), one.failure());
      },
      patience_of(job_));
  if (done) return all->first;
  // If the session has ended, the cause is that of the run.
  std::unique_lock lock{mutex_};
  constexpr std::chrono::seconds moment{1};
  return changed_.wait_for(lock, moment, [&] { return over_; }) ? failure() : done;
}

std::string training_loop::metrics_text() const {
  return metrics::prometheus_text(node_, options_.version, board_.current().get(),
                                  metrics::steady_now());
}

bool training_loop::hosts(virtual_stage_id vs) const {
  if (!places_) return true;
  const auto stage = job::effective_shape(job_).at(vs).stage;
  const auto places = places_->without(member_->run().start.start.absent);
  for (std::uint32_t d = 0; d < job_.pipeline.replicas; ++d)
    for (std::uint32_t r = 0; r < job_.pipeline.tp; ++r)
      if (places.node_of(replica_id{d}, stage, rank_id{r}) == node_) return true;
  return false;
}

bool training_loop::wait_for_rest() {
  std::unique_lock lock{mutex_};
  constexpr std::chrono::milliseconds moment{1000};
  const auto limit = over_ && ended_.hung ? moment : patience_of(job_);
  return changed_.wait_for(lock, limit, [&] { return is_at_rest_; });
}

std::string training_loop::report_failures() {
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

void training_loop::note(const std::string& line) {
  try {
    options_.hooks.on_note(line);
  } catch (const std::exception& e) {
    print_to_stderr(e.what());
  }
}

void training_loop::end(run_result how) {
  {
    const std::lock_guard lock{mutex_};
    if (std::exchange(over_, true)) return;
    ended_ = std::move(how);
  }
  notify();
}

void training_loop::notify() {
  changed_.notify_all();
  if (caller_) caller_->wake();
}

bool training_loop::is_over() {
  const std::lock_guard lock{mutex_};
  return over_;
}

status training_loop::check_usable() {
  if (!is_over() || (ended_.how == ending::done && !is_finished_)) return success();
  return failure();
}

error training_loop::failure() const {
  const auto kind = kind_of(ended_.how);
  if (!kind)
    return error{is_finished_ ? "the training is over"
                              : "the leading process has finished, but this one goes on: expected "
                                "the same calls in every process",
                 error_kind::failed};
  const auto is_silent = *kind == error_kind::interrupted && ended_.message.empty();
  return error{is_silent ? "interrupted" : ended_.message, *kind};
}

}  // namespace rrfp::actors
