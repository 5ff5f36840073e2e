#include <rrfp/pipeline.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/first_line.hpp>
#include <rrfp/job/check_job.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/version.hpp>

#include "fed_source.hpp"
#include "hook_thread.hpp"
#include "stage_chunk.hpp"

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

void print_to_stderr(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

/// Seeds libtorch's generator for its lifetime, and then restores its state.
class seeded_generator {
 public:
  explicit seeded_generator(std::uint64_t seed) {
    const std::lock_guard lock{generator_.mutex()};
    before_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  seeded_generator(const seeded_generator&) = delete;
  seeded_generator& operator=(const seeded_generator&) = delete;
  ~seeded_generator() {
    const std::lock_guard lock{generator_.mutex()};
    generator_.set_state(before_);
  }

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor before_;
};

std::uint64_t seed_of(std::uint64_t seed, std::uint32_t index) {
  // The increment of Weyl sequences; it is odd, so all parts of a model have different seeds.
  return seed + 0x9e3779b97f4a7c15U * (index + 1);
}

stage_place place_of(const pipeline_shape& shape, virtual_stage_id vs,
                     std::shared_ptr<compute::rank_group> group) {
  const auto at = shape.at(vs);
  return {at.stage.value(), at.chunk.value(), vs.value(), shape.virtual_stages(), std::move(group)};
}

/// Wraps a user function: its exceptions get its name, and all become std::exceptions.
template <class Result, class... Arguments>
std::function<Result(Arguments...)> named(std::string name, std::function<Result(Arguments...)> f) {
  if (!f) return f;
  return [name = std::move(name), f = std::move(f)](Arguments... arguments) -> Result {
    try {
      return f(std::forward<Arguments>(arguments)...);
    } catch (const std::exception& e) {
      throw std::runtime_error(name + " threw: " + compute::first_line_of(e));
    } catch (...) {
      throw std::runtime_error(name + " threw an object that is not a std::exception");
    }
  };
}

/// Runs `work`; an exception becomes an error.
template <class Work>
auto caught(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& e) {
    return error{compute::first_line_of(e)};
  }
}

/// The part of the model that each parameter belongs to. Checkpoints identify it by name only.
class parameter_owners {
 public:
  status add(std::uint32_t part, const std::string& name) {
    const auto [at, is_new] = part_of_.emplace(name, part);
    if (is_new || at->second == part) return success();
    return error{
        fmt::format("parameter '{}' is in part {} of the model and in part {}: names must "
                    "differ, as with stage_of(module, prefix)",
                    name, at->second, part)};
  }

  /// One line per parameter, for other processes.
  std::string text() const {
    std::string lines;
    for (const auto& [name, part] : part_of_) lines += fmt::format("{} {}\n", part, name);
    return lines;
  }
  status add_lines(const std::string& lines) {
    std::istringstream in{lines};
    std::uint32_t part = 0;
    for (std::string name; in >> part && std::getline(in.ignore(), name);)
      if (auto added = add(part, name); !added) return added;
    return success();
  }

 private:
  std::map<std::string, std::uint32_t> part_of_;
};

status check_options(const job::job& j, const pipeline_options& o) {
  if (auto valid = job::check_job(j, job::job_use::embed); !valid) return valid;
  if (j.device.kind != job::device_kind::cpu)
    return job::blame(j, "device.kind", "expected \"cpu\" with a user-defined model");
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
        data_(std::make_shared<fed_source>(patience(job_))) {
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
    if (auto joined = join(); !joined) return joined;
    auto setup = make_setup();
    if (!setup) return setup.failure();
    std::optional<actors::cluster> cluster;
    if (members_) {
      auto places =
          plan::node_places::make(job_, static_cast<std::uint32_t>(members_->members().size()));
      if (!places) return places.failure();
      cluster = actors::cluster{members_.get(), std::move(*places), job_.transport, token_, 0};
    }
    auto session =
        caught([&] { return actors::session::open(std::move(*setup), std::move(cluster)); });
    if (members_) {
      const auto mine = session ? success() : status{session.failure()};
      if (auto all = actors::agree_on(*members_, mine); !all) return all;
      if (auto all = compare_parameters(); !all) return all;
      if (auto all = (*session)->check_restored(); !all) return all;
    }
    if (!session) return session.failure();
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
    if (auto good = check(microbatches, how); !good) return good.failure();
    for (auto& mb : microbatches)
      for (auto* rows : {&mb.inputs, &mb.targets})
        if (rows->defined()) *rows = rows->detach();
    const bool trains = purpose == step_purpose::training;
    const step_id id{trains ? steps_ : first_evaluation + evaluations_};
    const pass_name step{purpose, number_of(id)};
    {
      // If this process was not needed for it, the others may have completed it and ended already.
      const std::lock_guard lock{mutex_};
      if (over_ && !summaries_.contains(step)) return failure();
    }
    data_->feed(id, std::move(microbatches), how.return_outputs);
    if (leads() && !is_over()) {
      if (trains)
        session_->train();
      else
        session_->evaluate();
    }
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return over_ || summaries_.contains(step); });
    const auto at = summaries_.find(step);
    if (at == summaries_.end()) return failure();
    const auto summary = std::move(at->second);
    summaries_.erase(at);
    lock.unlock();
    ++(trains ? steps_ : evaluations_);
    auto done = result_of(summary, data_->finish_step(id));
    if (options_.on_step) call_hook("on_step", [&] { options_.on_step(summary); });
    done.hook_failure = report_hook_failures();
    return done;
  }

  result<step_result> pass(step_purpose purpose, const batch& rows, step_options how) {
    auto microbatches = caught([&] { return cut(rows); });
    if (!microbatches) return microbatches.failure();
    return pass(purpose, std::move(*microbatches), how);
  }

  std::uint64_t steps() const { return steps_; }
  bool leads() const { return members_ == nullptr || members_->node() == node_id{0}; }

  status save() {
    if (job_.checkpoint.dir.empty())
      return job::blame(job_, "checkpoint.dir", "save() expects a folder, got none");
    if (auto over = check_running(); !over) return over;
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
    report_hook_failures();
    return ended_.summary;
  }

  void interrupt() { session_->interrupt(); }
  void report(std::string why) { session_->report(std::move(why)); }

 private:
  /// Waits until nothing runs any more, up to a limit. False if something has not returned.
  bool wait_for_rest() {
    std::unique_lock lock{mutex_};
    constexpr std::chrono::milliseconds moment{1000};
    const auto limit = over_ && ended_.hung ? moment : patience(job_);
    return changed_.wait_for(lock, limit, [&] { return is_at_rest_; });
  }

  /// Error: microbatches that would end the training.
  status check(const std::vector<compute::microbatch>& all, step_options how) const {
    if (options_.make_compute && how.return_outputs)
      return error{"return_outputs: expected make_stage or make_chunk, got make_compute"};
    if (options_.make_compute) return success();
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& mb = all[i];
      if (has_first_ && !options_.make_chunk && !mb.inputs.defined())
        return error{fmt::format(
            "microbatch {}: expected inputs in the process of the first stage, got none", i)};
      if (has_last_ && !mb.targets.defined())
        return error{fmt::format(
            "microbatch {}: expected targets in the process of the last stage, got none", i)};
      if (mb.tokens < 0)
        return error{
            fmt::format("microbatch {}: expected a count of 0 or more, got {}", i, mb.tokens)};
      counted += mb.tokens;
    }
    if (has_last_ && counted == 0)
      return error{"batch: expected targets that count, got a count of 0 in all microbatches"};
    return success();
  }

  result<std::vector<compute::microbatch>> cut(const batch& rows) const {
    const auto count = std::int64_t{job_.pipeline.microbatches} * job_.pipeline.replicas;
    std::vector<compute::microbatch> all(static_cast<std::size_t>(count));
    const auto share = [&](const char* name, const at::Tensor& whole, auto assign) -> status {
      if (!whole.defined()) return success();
      if (whole.dim() == 0 || whole.size(0) < count)
        return error{fmt::format("batch.{}: expected at least {} rows, one a microbatch, got {}",
                                 name, count, whole.dim() == 0 ? 0 : whole.size(0))};
      const auto parts = at::tensor_split(whole, count, 0);
      // Copies, so that each part has the alignment of libtorch's allocator.
      for (std::size_t i = 0; i < all.size(); ++i)
        assign(all[i], parts[i].detach().clone(at::MemoryFormat::Contiguous));
      return success();
    };
    if (rows.inputs.defined() && rows.targets.defined() && rows.inputs.dim() > 0 &&
        rows.targets.dim() > 0 && rows.inputs.size(0) != rows.targets.size(0))
      return error{fmt::format("batch: expected as many targets as inputs, got {} and {} rows",
                               rows.targets.size(0), rows.inputs.size(0))};
    auto inputs = share("inputs", rows.inputs,
                        [](auto& mb, at::Tensor part) { mb.inputs = std::move(part); });
    if (!inputs) return inputs.failure();
    auto targets = share("targets", rows.targets, [&](auto& mb, at::Tensor part) {
      mb.tokens = options_.count(part);
      mb.targets = std::move(part);
    });
    if (!targets) return targets.failure();
    return all;
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
    if (!joined->token) return joined->token.failure();
    members_ = std::move(joined->members);
    token_ = *joined->token;
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
    auto made = actors::make_setup_without_model(job_);
    if (!made) return made;
    auto& setup = *made;
    setup.name = job_.name;
    setup.on_request = true;
    setup.data = data_;
    setup.make_chunk = [this, shape = setup.shape](virtual_stage_id vs,
                                                   std::shared_ptr<compute::rank_group> group) {
      return make_chunk(shape, place_of(shape, vs, std::move(group)));
    };
    setup.make_compute = named("make_compute", options_.make_compute);
    setup.make_optimizer = named("make_optimizer", options_.make_optimizer);
    setup.wrap_transport = named("wrap_transport", options_.wrap_transport);
    if (options_.make_policy) setup.make_policy = named("make_policy", options_.make_policy);
    if (options_.weather) setup.delays = *options_.weather;
    if (options_.slot_bytes)
      setup.slot_bytes = [bytes = named("slot_bytes", options_.slot_bytes)](
                             step_id, stage_id s, microbatch_id mb) { return bytes(s, mb); };
    else if (job_.dispatch.slot_bytes != 0)
      return job::blame(job_, "dispatch.slot_bytes",
                        "expected pipeline_options::slot_bytes to be set, got none");
    setup.trace = options_.trace;
    // On their own thread, because a hook that blocks must not block the job.
    if (options_.on_checkpoint)
      setup.on_checkpoint = [this](const actors::checkpoint_report& r) {
        hooks_->post([this, r] { call_hook("on_checkpoint", [&] { options_.on_checkpoint(r); }); });
      };
    setup.on_report = [this](const std::string& text) {
      hooks_->post([this, text] { call_hook("on_report", [&] { options_.on_report(text); }); });
    };
    setup.on_step = [this](const actors::step_summary& s) { on_step(s); };
    setup.on_ending = [this](const actors::run_result& r) { end(r); };
    setup.checkpoint = actors::checkpoint_setup_of(job_, actors::identity_without_model(job_));
    if (!setup.checkpoint) return made;
    // The program decides the number of steps.
    auto endless = job_;
    endless.train.steps = std::numeric_limits<std::uint64_t>::max();
    auto agreed = actors::agree_on_resume(endless, *setup.checkpoint, members_.get());
    if (!agreed) return agreed.failure();
    for (const auto& line : agreed->notes()) options_.on_note(line);
    setup.resume = std::move(agreed->from);
    if (setup.resume) {
      steps_ = setup.resume->contents.step;
      options_.on_note(fmt::format("resumes after step {} from {}", steps_, setup.resume->folder));
    }
    return made;
  }

  using chunk = result<std::unique_ptr<compute::stage_module>>;

  chunk make_chunk(const pipeline_shape& shape, const stage_place& place) {
    const seeded_generator drawing{seed_of(job_.train.seed, place.index)};
    auto made = make_by_user(shape, place);
    if (!made) return made;
    if (place.is_last()) *made = keep_outputs(*std::move(made), place, data_);
    for (const auto& p : (*made)->parameters())
      if (p.tied == compute::tie::none)
        if (auto added = owners_.add(place.index, p.name); !added) return added.failure();
    return made;
  }

  chunk make_by_user(const pipeline_shape& shape, const stage_place& place) {
    const std::function<chunk()> make = [&]() -> chunk {
      if (options_.make_chunk) {
        auto made = options_.make_chunk(place);
        if (made && *made == nullptr) return error{"the factory returned no module"};
        return made;
      }
      auto s = options_.make_stage(place);
      if (!s) return s.failure();
      const auto here = shape.at(virtual_stage_id{place.index});
      const auto from = shape.producer_of(here.stage, {task_kind::forward, {}, here.chunk});
      const auto input_name =
          from ? fmt::format("stage {}", from->stage.value()) : std::string{"the batch"};
      return make_stage_chunk(place, *std::move(s), input_name, {options_.loss});
    };
    return caught(named("its factory", make));
  }

  /// Checks the names against those of other processes; all processes get the same result.
  status compare_parameters() {
    constexpr std::chrono::seconds limit{30};
    const auto all = members_->all_gather(owners_.text(), limit);
    if (!all) return all.failure();
    parameter_owners together;
    for (const auto& lines : *all)
      if (auto added = together.add_lines(lines); !added) return added;
    return success();
  }

  /// Calls a hook; an exception is kept for hook_failure and does not affect the run.
  template <class Call>
  void call_hook(const char* name, Call call) {
    std::string why;
    try {
      return call();
    } catch (const std::exception& e) {
      why = fmt::format("{} threw: {}", name, compute::first_line_of(e));
    } catch (...) {
      why = fmt::format("{} threw an object that is not a std::exception", name);
    }
    const std::lock_guard lock{mutex_};
    hook_failure_ += (hook_failure_.empty() ? "" : "; ") + why;
  }

  /// Notes and returns what hooks threw since the last call.
  std::string report_hook_failures() {
    std::string failures;
    {
      const std::lock_guard lock{mutex_};
      failures = std::exchange(hook_failure_, {});
    }
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
    std::promise<void> hooks_done;
    hooks_->post([&] { hooks_done.set_value(); });
    hooks_done.get_future().wait();
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

  status check_running() {
    if (!is_over()) return success();
    return failure();
  }

  /// Why there is no result.
  error failure() const {
    switch (ended_.how) {
      case actors::ending::done: return error{"the training is over", error_kind::failed};
      case actors::ending::interrupted: return error{"interrupted", error_kind::interrupted};
      case actors::ending::bad_input: return error{ended_.message, error_kind::bad_input};
      case actors::ending::failed: return error{ended_.message, error_kind::failed};
      case actors::ending::node_lost: return error{ended_.message, error_kind::node_lost};
    }
    return error{ended_.message, error_kind::failed};
  }

  static step_result result_of(const actors::step_summary& s, std::vector<at::Tensor> outputs) {
    step_result r;
    r.step = s.step;
    r.loss = s.loss;
    for (const auto& l : s.losses) r.losses.push_back(l.mean);
    r.gradient_norm = s.gradient_norm;
    r.lr = s.lr;
    r.count = s.tokens;
    r.ms = s.step_ms;
    r.bubble = s.bubble_fraction;
    r.outputs = std::move(outputs);
    return r;
  }

  /// A step or an evaluation, and its number.
  using pass_name = std::pair<step_purpose, std::uint64_t>;

  const job::job job_;
  pipeline_options options_;
  const std::shared_ptr<fed_source> data_;
  parameter_owners owners_;  ///< of the parts hosted here
  std::unique_ptr<actors::membership> members_;
  std::uint64_t token_ = 0;
  std::unique_ptr<actors::session> session_;
  std::thread runner_;
  std::uint64_t steps_ = 0;
  std::uint64_t evaluations_ = 0;
  bool has_first_ = true;  ///< the first part of the model, or a copy of it, is here
  bool has_last_ = true;
  bool is_finished_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<pass_name, actors::step_summary> summaries_;
  bool over_ = false;
  actors::run_result ended_;  ///< once over_
  bool is_at_rest_ = false;   ///< over_, and nothing runs any more
  std::string hook_failure_;  ///< since the last report
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
  return impl_->pass(compute::step_purpose::training, rows, how);
}
result<step_result> pipeline::step(std::vector<compute::microbatch> microbatches,
                                   step_options how) {
  return impl_->pass(compute::step_purpose::training, std::move(microbatches), how);
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
status pipeline::save() { return impl_->save(); }
result<actors::run_summary> pipeline::finish() { return impl_->finish(); }
void pipeline::interrupt() { impl_->interrupt(); }
void pipeline::report(std::string why) { impl_->report(std::move(why)); }

}  // namespace rrfp
