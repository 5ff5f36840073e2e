/// The job of a training_loop: how its process joins the others, begins a run, goes on after a
/// loss, and ends.
#include <cstdlib>
#include <exception>
#include <limits>

#include <fmt/format.h>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/training_loop.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/device/caller_queue.hpp>

#include "hook_thread.hpp"

namespace rrfp::actors {

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

/// What the loop adds to the job of its process.
class training_loop::program final : public job_program {
 public:
  explicit program(training_loop& loop) : loop_(loop) {}

  std::function<void()> look;   ///< may be empty; what it throws ends the wait for other processes
  std::exception_ptr thrown{};  ///< by it

  membership_options options_of_join() override {
    membership_options options;
    options.version = loop_.options_.version;
    options.description = loop_.places_->describe(loop_.node_);
    options.on_refused = print_to_stderr;
    return options;
  }
  void on_joining(std::function<void()> interrupt, bool) override {
    interrupt_ = std::move(interrupt);
  }
  void on_waiting(const std::string&) override {
    if (!look || thrown) return;
    try {
      look();
    } catch (...) {
      thrown = std::current_exception();
      interrupt_();
    }
  }
  status prepare(const begun_run& begun, session_setup& setup) override {
    if (const auto& hook = loop_.options_.hooks.before_ranks) hook();
    if (!loop_.has_trained_ || setup.resume || begun.start.from.has_copies()) return success();
    return error{
        "no process holds the state of the parts that were lost, and there is no checkpoint: "
        "expected all processes to be started again",
        error_kind::failed};
  }

 private:
  training_loop& loop_;
  std::function<void()> interrupt_;
};

status training_loop::open(std::shared_ptr<const framework> framework, session_setup setup,
                           std::shared_ptr<const void> kept, const std::function<void()>& look) {
  auto place =
      options_.place
          ? result<launch_place>{*options_.place}
          : resolve_launch({}, [](const char* name) -> const char* { return std::getenv(name); });
  if (!place) return place.failure();
  if (place->nodes == 0) return error{"place: expected at least 1 node, got 0"};
  if (auto enough = check_threads(job_, place->nodes); !enough) return enough;
  const bool is_alone = place->nodes == 1;
  if (!is_alone) {
    auto places = job::node_places::make(job_, place->nodes);
    if (!places) return places.failure();
    places_ = *std::move(places);
    node_ = place->node;
  }
  framework_ = std::move(framework);
  kept_ = kept;
  setup.on_request = true;
  setup.board = &board_;
  setup.caller = caller_;
  set_hooks(setup);
  // The program decides the number of steps.
  auto endless = job_;
  endless.train.steps = std::numeric_limits<std::uint64_t>::max();
  job_on_nodes j;
  j.job = job_;
  j.framework = framework_.get();
  j.runs.push_back({std::move(endless), nullptr, std::move(setup)});
  if (!is_alone) j.place = *std::move(place);
  j.has_outputs = false;
  program_ = std::make_unique<program>(*this);
  member_ = job_member::make(std::move(j), *program_);
  hooks_ = std::make_unique<hook_thread>();
  return begin(look);
}

status training_loop::recover(const std::function<void()>& look) {
  {
    const auto call = begin_call();
    if (!call) return call.failure();
  }
  if (!is_over())
    return error{"recover(): expected a run that has lost a process, got one that goes on"};
  if (ended_.how != ending::node_lost || is_finished_ || !runner_.joinable()) return failure();
  if (!wait_for_rest())
    return error{
        "recover(): the run has not ended, because a user function has not returned or a process "
        "does not answer",
        error_kind::failed};
  runner_.join();
  const bool joins_again = end_session(ended_) == aftermath::joins_again;
  auto begun = joins_again ? begin(look) : error{member_->outcome().message, error_kind::node_lost};
  if (!begun) ended_.message = begun.message();
  return begun;
}

status training_loop::begin(const std::function<void()>& look) {
  program_->look = look;
  const bool has_begun = member_->begin();
  program_->look = nullptr;
  if (const auto thrown = std::exchange(program_->thrown, nullptr)) {
    if (has_begun) member_->end({{ending::interrupted}});
    std::rethrow_exception(thrown);
  }
  if (!has_begun) {
    const auto& end = member_->outcome();
    return error{end.is_late ? "the job was over before this process had joined" : end.message,
                 kind_of(end.how).value_or(error_kind::failed)};
  }
  note_start(member_->run());
  leads_ = member_->run().node.leads();
  steps_ = member_->run().first_step();
  evaluations_ = 0;
  accumulates_ = false;
  {
    const std::lock_guard lock{mutex_};
    summaries_.clear();
    fed_.reset();
    ready_ = 0;
    over_ = is_at_rest_ = false;
    ended_ = {};
    session_ = &member_->session();
  }
  if (caller_) caller_->forget();
  runner_ = std::thread{[self = shared_from_this(), kept = kept_.lock()] { self->run(); }};
  if (member_->run().start.from.has_copies()) wait_for_state(look);
  return success();
}

aftermath training_loop::end_session(const run_result& r) {
  {
    const std::lock_guard lock{mutex_};
    session_ = nullptr;
  }
  return member_->end(r);
}

void training_loop::note_start(const begun_run& begun) {
  const auto note = options_.hooks.on_note;
  for (const auto& line : begun.start.notes) note(line);
  if (begun.goes_on()) {
    const auto& r = begun.recoveries.back();
    note(fmt::format("{}; goes on after step {}, {} steps repeated, {:.1f} s after the loss",
                     r.lost, r.step, r.repeated_steps, r.held_s));
  }
  if (const auto& resume = begun.start.setup.resume)
    note(fmt::format("resumes after step {} from {}", begun.first_step(), resume->folder));
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
  setup.on_state_ready = [this] {
    {
      const std::lock_guard lock{mutex_};
      ++ready_;
    }
    notify();
  };
  setup.on_ending = [this](const run_result& r) { end(r); };
  setup.before_step = std::bind_front(&training_loop::wait_for_batch, this);
  setup.has_batch = [this](step_id step) {
    const std::lock_guard lock{mutex_};
    return fed_ == step;
  };
}

void training_loop::run() {
  try {
    end(member_->session().run());
  } catch (const std::exception& e) {
    end({{ending::failed, e.what()}});
  }
  hooks_->drain();
  {
    const std::lock_guard lock{mutex_};
    is_at_rest_ = true;
  }
  notify();
}

}  // namespace rrfp::actors
