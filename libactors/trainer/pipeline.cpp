#include <rrfp/pipeline.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/job/check_job.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/version.hpp>

#include "batches.hpp"
#include "fed_source.hpp"
#include "hook_thread.hpp"
#include "model_parts.hpp"
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

void print_to_stderr(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

status check_options(const job::job& j, const pipeline_options& o) {
  if (auto valid = job::check_job(j, policies::registry(), job::job_use::embed); !valid)
    return valid;
  if (j.device.kind == job::device_kind::emulated ||
      (j.device.kind != job::device_kind::cpu && o.make_compute))
    return job::blame(j, "device.kind", "expected \"cpu\" with a user-defined model or compute");
  if (o.make_compute || o.make_chunk || (o.make_stage && o.loss)) return success();
  return error{
      "pipeline_options: expected make_stage and loss, or make_chunk, or make_compute, got none"};
}

}  // namespace

class pipeline::impl : public std::enable_shared_from_this<pipeline::impl> {
 public:
  impl(job::job j, pipeline_options options)
      : job_(std::move(j)),
        options_(std::move(options)),
        data_(std::make_shared<fed_source>(patience(job_))),
        model_(options_, job_.train.seed, data_) {
    if (!options_.on_note) options_.on_note = print_to_stderr;
    if (!options_.on_report) options_.on_report = print_to_stderr;
    if (!options_.count) options_.count = [](const at::Tensor& target) { return target.size(0); };
    options_.on_note = named("on_note", std::move(options_.on_note));
    options_.count = named("count", std::move(options_.count));
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  /// Ends the run. A thread that cannot be ended keeps this state alive.
  void close() {
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

  status open() {
    if (auto valid = check_options(job_, options_); !valid) return valid;
    // What one process alone can refuse, it refuses before it joins.
    auto setup = make_setup();
    if (!setup) return setup.failure();
    if (auto joined = join(); !joined) return joined;
    if (auto chosen = choose_resume(*setup); !chosen) return chosen;
    auto session = actors::open_session(job_, *std::move(setup), {members_.get(), start_});
    if (!session) return session.failure();
    if (auto all = model_.compare_names(members_.get()); !all) return all;
    session_ = std::move(*session);
    hooks_ = std::make_unique<hook_thread>();
    runner_ = std::thread{[self = shared_from_this()] { self->run(); }};
    return success();
  }

  result<step_result> pass(step_purpose purpose, std::vector<compute::microbatch> microbatches,
                           step_options how) {
    const auto expected = job_.pipeline.microbatches * job_.pipeline.replicas;
    if (microbatches.size() != expected)
      return error{fmt::format("expected {} microbatches, got {}", expected, microbatches.size())};
    if (options_.make_compute && how.return_outputs)
      return error{"return_outputs: expected make_stage or make_chunk, got make_compute"};
    const needed_parts needed{has_first_ && !options_.make_chunk, has_last_};
    if (!options_.make_compute)
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
    data_->feed(id, std::move(microbatches), how.return_outputs);
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
    if (options_.on_step) hooks_->call("on_step", [&] { options_.on_step(summary); });
    done.hook_failure = report_failures();
    return done;
  }

  result<step_result> pass(step_purpose purpose, const batch& rows, step_options how) {
    auto microbatches = caught([&] {
      const auto count = std::int64_t{job_.pipeline.microbatches} * job_.pipeline.replicas;
      return cut(rows, count, options_.count);
    });
    if (!microbatches) return microbatches.failure();
    return pass(purpose, std::move(*microbatches), how);
  }

  std::uint64_t steps() const { return steps_; }
  bool leads() const { return members_ == nullptr || members_->node() == node_id{0}; }

  result<std::vector<compute::named_tensor>> state_dict() {
    if (is_over()) return failure();
    struct gathered {
      std::mutex turn;
      std::map<std::pair<std::string, std::int64_t>, compute::named_tensor> by_place;
    };
    const auto all = std::make_shared<gathered>();
    const auto done = for_each_compute([all](auto& c) {
      auto mine = c.snapshot(compute::tied_copies::included);
      const std::lock_guard lock{all->turn};
      for (auto& t : mine) {
        const std::pair place{t.name, t.part ? t.part->offset : 0};
        if (all->by_place.contains(place)) continue;
        t.value = t.value.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
        all->by_place.emplace(place, std::move(t));
      }
      return success();
    });
    if (!done) return done.failure();
    std::vector<compute::named_tensor> state;
    for (auto& [place, t] : all->by_place) state.push_back(std::move(t));
    return state;
  }

  status load_state_dict(std::vector<compute::named_tensor> state) {
    if (is_over()) return failure();
    const auto shared =
        std::make_shared<const std::vector<compute::named_tensor>>(std::move(state));
    // All ranks look before the first one changes.
    auto fits = for_each_compute([shared](auto& c) { return c.fits(*shared); });
    return fits ? for_each_compute([shared](auto& c) { return c.restore(*shared); }) : fits;
  }

  status save() {
    if (job_.checkpoint.dir.empty())
      return job::blame(job_, "checkpoint.dir", "save() expects a folder, got none");
    if (accumulates_) return error{"save(): expected a step that updates, got waiting gradients"};
    if (is_over()) return failure();
    if (leads()) session_->save();
    return success();
  }

  result<actors::run_summary> finish() {
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

  void interrupt() { session_->interrupt(); }
  void report(std::string why) { session_->report(std::move(why)); }

 private:
  /// Calls `work(compute)` for each rank here, between steps. Returns the first failure.
  status for_each_compute(std::function<status(compute::rank_compute&)> work) {
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

  /// Waits until nothing runs any more, up to a limit. False if something has not returned.
  bool wait_for_rest() {
    std::unique_lock lock{mutex_};
    constexpr std::chrono::milliseconds moment{1000};
    const auto limit = over_ && ended_.hung ? moment : patience(job_);
    return changed_.wait_for(lock, limit, [&] { return is_at_rest_; });
  }

  status join() {
    auto place = options_.place ? result<actors::launch_place>{*options_.place}
                                : actors::resolve_launch({}, [](const char* name) -> const char* {
                                    return std::getenv(name);
                                  });
    if (!place) return place.failure();
    if (place->nodes == 1) return success();
    const auto places = plan::node_places::make(job_, place->nodes);
    if (!places) return places.failure();
    find_ends(*places, node_id{place->node});
    actors::join_hooks hooks;
    hooks.version = version;
    hooks.description = places->describe(place->node);
    hooks.on_refused = print_to_stderr;
    auto joined = actors::join_job(job_, *place, std::move(hooks));
    if (!joined) return joined.failure();
    if (!joined->start) return joined->start.failure();
    members_ = std::move(joined->members);
    start_ = *joined->start;
    return success();
  }

  /// With several processes: whether the first and the last part of the model are here.
  void find_ends(const plan::node_places& places, node_id here) {
    const auto shape = job::effective_shape(job_);
    const auto hosts = [&](virtual_stage_id vs) {
      for (std::uint32_t d = 0; d < job_.pipeline.replicas; ++d)
        for (std::uint32_t r = 0; r < job_.pipeline.tp; ++r)
          if (places.node_of(replica_id{d}, shape.at(vs).stage, rank_id{r}) == here) return true;
      return false;
    };
    has_first_ = hosts(virtual_stage_id{0});
    has_last_ = hosts(virtual_stage_id{shape.virtual_stages() - 1});
  }

  result<actors::session_setup> make_setup() {
    auto made = actors::make_setup_without_model(job_, policies::registry());
    if (!made) return made;
    auto& setup = *made;
    setup.name = job_.name;
    setup.on_request = true;
    setup.data = data_;
    setup.make_chunk = [this, shape = setup.shape](virtual_stage_id vs,
                                                   std::shared_ptr<compute::rank_group> group) {
      return model_.make(shape, vs, std::move(group));
    };
    setup.make_compute = named("make_compute", options_.make_compute);
    setup.make_optimizer = named("make_optimizer", options_.make_optimizer);
    setup.lr = named("lr", options_.lr);
    setup.wrap_transport = named("wrap_transport", options_.wrap_transport);
    if (options_.make_policy) {
      setup.strategies.resize(1);
      setup.strategies.front().make_policy = named("make_policy", options_.make_policy);
    }
    if (options_.weather) setup.delays = *options_.weather;
    if (options_.slot_bytes)
      setup.slot_bytes = [bytes = named("slot_bytes", options_.slot_bytes)](
                             step_id, stage_id s, microbatch_id mb) { return bytes(s, mb); };
    else if (job_.dispatch.slot_bytes != 0)
      return job::blame(job_, "dispatch.slot_bytes",
                        "expected pipeline_options::slot_bytes to be set, got none");
    setup.trace = options_.trace;
    // Hooks have a thread of their own, because one that blocks must not block the job.
    setup.on_checkpoint = [this](const actors::checkpoint_report& r) {
      if (!r.failure.empty()) {
        const std::lock_guard lock{mutex_};
        failed_save_ = fmt::format("checkpoint of step {} not saved: {}", r.step, r.failure);
        notes_.push_back(failed_save_);
      }
      if (options_.on_checkpoint)
        hooks_->post("on_checkpoint", [this, r] { options_.on_checkpoint(r); });
    };
    setup.on_report = [this](const std::string& text) {
      hooks_->post("on_report", [this, text] { options_.on_report(text); });
    };
    setup.on_step = [this](const actors::step_summary& s) { on_step(s); };
    setup.on_ending = [this](const actors::run_result& r) { end(r); };
    setup.checkpoint = actors::checkpoint_setup_of(job_, actors::identity_without_model(job_));
    return made;
  }

  status choose_resume(actors::session_setup& setup) {
    // The program decides the number of steps.
    auto endless = job_;
    endless.train.steps = std::numeric_limits<std::uint64_t>::max();
    const auto notes = actors::agree_on_resume(endless, setup, members_.get());
    if (!notes) return notes.failure();
    for (const auto& line : *notes) options_.on_note(line);
    if (setup.resume) {
      steps_ = setup.resume->contents.step;
      options_.on_note(fmt::format("resumes after step {} from {}", steps_, setup.resume->folder));
    }
    return success();
  }

  /// Notes failed saves and what hooks threw since the last call, and returns the latter.
  std::string report_failures() {
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

  void note(const std::string& line) {
    try {
      options_.on_note(line);
    } catch (const std::exception& e) {
      print_to_stderr(e.what());
    }
  }

  void on_step(const actors::step_summary& s) {
    const std::lock_guard lock{mutex_};
    summaries_[{s.purpose, s.step}] = s;
    changed_.notify_all();
  }

  void run() {
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

  /// Only the first call has an effect.
  void end(actors::run_result how) {
    data_->close();
    const std::lock_guard lock{mutex_};
    if (std::exchange(over_, true)) return;
    ended_ = std::move(how);
    changed_.notify_all();
  }

  bool is_over() {
    const std::lock_guard lock{mutex_};
    return over_;
  }

  /// Why there is no result.
  error failure() const {
    const auto kind = kind_of(ended_.how);
    if (!kind) return error{"the training is over", error_kind::failed};
    return error{*kind == error_kind::interrupted ? "interrupted" : ended_.message, *kind};
  }

  static step_result result_of(const actors::step_summary& s, std::vector<at::Tensor> outputs) {
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
    // All work of the step is done on the device.
    for (auto& o : outputs) r.outputs.push_back(o.cpu());
    return r;
  }

  /// A step or an evaluation, and its number.
  using pass_name = std::pair<step_purpose, std::uint64_t>;

  const job::job job_;
  pipeline_options options_;
  const std::shared_ptr<fed_source> data_;
  model_parts model_;
  std::unique_ptr<actors::membership> members_;
  actors::job_start start_;
  std::unique_ptr<actors::session> session_;
  std::thread runner_;
  std::uint64_t steps_ = 0;
  std::uint64_t evaluations_ = 0;
  bool accumulates_ = false;  ///< gradients wait for their update
  bool has_first_ = true;     ///< the first part of the model, or a copy of it, is here
  bool has_last_ = true;
  bool is_finished_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<pass_name, actors::step_summary> summaries_;
  bool over_ = false;
  actors::run_result ended_;        ///< once over_
  bool is_at_rest_ = false;         ///< over_, and nothing runs any more
  std::string failed_save_;         ///< the last one
  std::vector<std::string> notes_;  ///< for on_note
  std::unique_ptr<hook_thread> hooks_;
};

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

}  // namespace rrfp
