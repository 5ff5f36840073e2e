#include <rrfp/actors/training_loop.hpp>

#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/run_start.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/device/caller_queue.hpp>
#include <rrfp/job/check_job.hpp>
#include <rrfp/metrics/prometheus_text.hpp>

#include "hook_thread.hpp"

namespace rrfp::actors {

using compute::step_purpose;

training_loop::training_loop(job::job j, loop_options options)
    : job_(std::move(j)),
      options_(std::move(options)),
      caller_(options_.computes_on_caller
                  ? std::make_shared<caller_queue>(std::chrono::microseconds{job_.run.spin_us})
                  : nullptr) {
  auto& hooks = options_.hooks;
  if (!hooks.on_note) hooks.on_note = print_to_stderr;
  if (!hooks.on_report) hooks.on_report = print_to_stderr;
  hooks.on_note = named("on_note", std::move(hooks.on_note));
}

training_loop::~training_loop() = default;

std::chrono::milliseconds patience_of(const job::job& j) {
  constexpr double a_week_s = 7.0 * 24 * 3600;
  const auto seconds = j.run.hang_timeout_s > 0 ? j.run.hang_timeout_s : a_week_s;
  return std::chrono::milliseconds{static_cast<std::int64_t>(seconds * 1e3)};
}

status training_loop::join(const framework& framework) {
  auto place =
      options_.place
          ? result<launch_place>{*options_.place}
          : resolve_launch({}, [](const char* name) -> const char* { return std::getenv(name); });
  if (!place) return place.failure();
  if (place->nodes == 1) return success();
  auto places = plan::node_places::make(job_, place->nodes);
  if (!places) return places.failure();
  places_ = *std::move(places);
  join_hooks hooks;
  hooks.version = options_.version;
  hooks.description = places_->describe(place->node);
  hooks.on_refused = print_to_stderr;
  auto joined = join_job(job_, *place, framework, std::move(hooks));
  if (!joined) return joined.failure();
  members_ = *std::move(joined);
  return success();
}

status training_loop::open(session_setup setup, const std::function<status(membership*)>& check,
                           std::shared_ptr<const void> kept) {
  setup.name = job_.name;
  setup.on_request = true;
  setup.board = &board_;
  setup.caller = caller_;
  set_hooks(setup);
  if (auto chosen = choose_resume(setup); !chosen) return chosen;
  auto opened = open_session(job_, std::move(setup), {members_.get(), start_});
  if (!opened) return opened.failure();
  if (check)
    if (auto good = check(members_.get()); !good) return good;
  if (auto all = exchange_lines(); !all) return all;
  session_ = std::move(*opened);
  hooks_ = std::make_unique<hook_thread>();
  runner_ = std::thread{[self = shared_from_this(), kept = std::move(kept)] { self->run(); }};
  return success();
}

status training_loop::exchange_lines() {
  const auto& hooks = options_.hooks;
  if (!hooks.tell) return success();
  const auto mine = caught([&] { return result<std::string>{hooks.tell()}; });
  if (members_ == nullptr) {
    if (!mine) return mine.failure();
    hooks.hear(*mine);
    return success();
  }
  constexpr std::chrono::seconds limit{30};
  const auto all = agree(
      *members_, mine,
      [](const std::vector<std::string>& lines) -> result<std::vector<std::string>> {
        return std::vector<std::string>{fmt::format("{}", fmt::join(lines, "\n"))};
      },
      limit);
  if (!all) return all.failure();
  hooks.hear(*all);
  return success();
}

status training_loop::choose_resume(session_setup& setup) {
  // The program decides the number of steps.
  auto endless = job_;
  endless.train.steps = std::numeric_limits<std::uint64_t>::max();
  auto begun = agree_on_start(members_.get(), std::vector<opened_run>{{endless, nullptr, setup}});
  if (!begun) return begun.failure();
  start_ = begun->start;
  setup = std::move(begun->setup);
  for (const auto& line : begun->notes) options_.hooks.on_note(line);
  if (setup.resume) {
    steps_ = setup.resume->contents.step;
    options_.hooks.on_note(
        fmt::format("resumes after step {} from {}", steps_, setup.resume->folder));
  }
  return success();
}

void training_loop::set_hooks(session_setup& setup) {
  // Hooks have a thread of their own, because one that blocks must not block the job.
  setup.on_checkpoint = [this](const checkpoint_report& r) {
    if (!r.failure.empty()) {
      const std::lock_guard lock{mutex_};
      failed_save_ = fmt::format("checkpoint of step {} not saved: {}", r.step, r.failure);
      notes_.push_back(failed_save_);
    }
    if (options_.hooks.on_checkpoint)
      hooks_->post("on_checkpoint", [this, r] { options_.hooks.on_checkpoint(r); });
  };
  setup.on_report = [this](const std::string& text) {
    hooks_->post("on_report", [this, text] { options_.hooks.on_report(text); });
  };
  setup.on_step = [this](const step_summary& s) {
    {
      const std::lock_guard lock{mutex_};
      summaries_[{s.purpose, s.step}] = s;
    }
    notify();
  };
  setup.on_ending = [this](const run_result& r) { end(r); };
}

void training_loop::close() {
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

result<std::unique_lock<std::mutex>> training_loop::begin_call() {
  std::unique_lock call{calls_, std::try_to_lock};
  if (!call.owns_lock())
    return error{"the pipeline is in a step or another call: expected one call at a time"};
  return call;
}

result<passed_step> training_loop::pass(step_purpose purpose,
                                        const std::function<void(step_id)>& feed,
                                        const std::function<void()>& look) {
  auto call = begin_call();
  if (!call) return call.failure();
  const bool trains = purpose != step_purpose::evaluation;
  const step_id id{trains ? steps_ : first_evaluation + evaluations_};
  const pass_name step{purpose, number_of(id)};
  {
    // If this process was not needed for it, the others may have completed it and ended already.
    const std::lock_guard lock{mutex_};
    if (over_ && !summaries_.contains(step)) return failure();
  }
  if (feed) feed(id);
  if (caller_) caller_->want(id);
  if (leads() && !is_over()) {
    switch (purpose) {
      case step_purpose::training: session_->train(); break;
      case step_purpose::accumulation: session_->accumulate(); break;
      case step_purpose::evaluation: session_->evaluate(); break;
    }
  }
  wait_until([&] { return over_ || summaries_.contains(step); }, look);
  std::unique_lock lock{mutex_};
  const auto at = summaries_.find(step);
  if (at == summaries_.end()) return failure();
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
    session_->interrupt();
    session_->interrupt();
    wait([this] { return over_; }, {});
    throw;
  }
}

status training_loop::save() {
  if (job_.checkpoint.dir.empty())
    return job::blame(job_, "checkpoint.dir", "save() expects a folder, got none");
  if (accumulates_) return error{"save(): expected a step that updates, got waiting gradients"};
  if (is_over()) return failure();
  if (leads()) session_->save();
  return success();
}

result<run_summary> training_loop::finish(const std::function<void()>& look) {
  {
    const auto call = begin_call();
    if (!call) return call.failure();
  }
  if (std::exchange(is_finished_, true)) return failure();
  if (leads() && !is_over()) session_->finish();
  wait_until([&] { return over_; }, look);
  if (ended_.how != ending::done && !ended_.nothing_lost) return failure();
  if (wait_for_rest() && members_) members_->leave();
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
  const auto done = session_->for_each_rank(
      [all, work = std::move(work)](const rank_address& at, compute::rank_compute& c) {
        const auto one = work(c);
        const std::lock_guard lock{all->turn};
        if (!one && all->first.ok())
          all->first = within(fmt::format("stage {}", at.stage.value()), one.failure());
      },
      patience_of(job_));
  return done ? all->first : done;
}

std::string training_loop::metrics_text() const {
  return metrics::prometheus_text(members_ ? members_->node() : node_id{0}, options_.version,
                                  board_.current().get(), metrics::steady_now());
}

bool training_loop::hosts(virtual_stage_id vs) const {
  if (!places_) return true;
  const auto here = members_ ? members_->node() : node_id{0};
  const auto stage = job::effective_shape(job_).at(vs).stage;
  for (std::uint32_t d = 0; d < job_.pipeline.replicas; ++d)
    for (std::uint32_t r = 0; r < job_.pipeline.tp; ++r)
      if (places_->node_of(replica_id{d}, stage, rank_id{r}) == here) return true;
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

void training_loop::run() {
  try {
    end(session_->run());
  } catch (const std::exception& e) {
    run_result failed;
    failed.how = ending::failed;
    failed.message = e.what();
    end(std::move(failed));
  }
  hooks_->drain();
  {
    const std::lock_guard lock{mutex_};
    is_at_rest_ = true;
  }
  notify();
}

void training_loop::end(run_result how) {
  {
    const std::lock_guard lock{mutex_};
    if (std::exchange(over_, true)) return;
    ended_ = std::move(how);
  }
  if (options_.hooks.on_end) options_.hooks.on_end();
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

error training_loop::failure() const {
  const auto kind = kind_of(ended_.how);
  if (!kind) return error{"the training is over", error_kind::failed};
  return error{*kind == error_kind::interrupted ? "interrupted" : ended_.message, *kind};
}

}  // namespace rrfp::actors
