#include <rrfp/pipeline.hpp>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/compute/first_line.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/schedule/check.hpp>
#include <rrfp/version.hpp>

#include "fed_source.hpp"
#include "stage_chunk.hpp"

namespace rrfp {

namespace {

using compute::step_purpose;

/// How long a process waits for the batch of a step that others have begun.
std::chrono::milliseconds feeding_limit(const job::job& j) {
  constexpr double a_week_s = 7.0 * 24 * 3600;
  const auto seconds = j.run.hang_timeout_s > 0 ? j.run.hang_timeout_s : a_week_s;
  return std::chrono::milliseconds{static_cast<std::int64_t>(seconds * 1e3)};
}

void tell_on_stderr(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

std::uint64_t seed_of(std::uint64_t seed, std::uint32_t index) {
  // Odd, so that no two parts of a training share a seed (the increment of Weyl sequences).
  return seed + 0x9e3779b97f4a7c15U * (index + 1);
}

stage_place place_of(const pipeline_shape& shape, virtual_stage_id vs,
                     std::shared_ptr<compute::rank_group> group) {
  const auto at = shape.at(vs);
  return {at.stage.value(), at.chunk.value(), vs.value(), shape.virtual_stages(), std::move(group)};
}

/// A function of the user's that says which one it is when it throws, and throws std::exceptions
/// alone.
template <class Result, class... Arguments>
std::function<Result(Arguments...)> named(std::string name, std::function<Result(Arguments...)> f) {
  if (!f) return f;
  return [name = std::move(name), f = std::move(f)](Arguments... arguments) -> Result {
    try {
      return f(std::forward<Arguments>(arguments)...);
    } catch (const std::exception& e) {
      throw std::runtime_error(name + " threw: " + compute::first_line_of(e));
    } catch (...) {
      throw std::runtime_error(name + " threw something that is no std::exception");
    }
  };
}

/// What `work` throws becomes an error.
template <class Work>
auto caught(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& e) {
    return error{compute::first_line_of(e)};
  }
}

/// Which part of the model has a parameter; checkpoints know it by its name alone.
class parameter_owners {
 public:
  status add(std::uint32_t part, const std::string& name) {
    const auto [at, is_new] = of_.emplace(name, part);
    if (is_new || at->second == part) return success();
    return error{
        fmt::format("parameter '{}' is in part {} of the model and in part {}: names must "
                    "differ, as with stage_of(module, prefix)",
                    name, at->second, part)};
  }

  /// A line each, for other processes.
  std::string text() const {
    std::string lines;
    for (const auto& [name, part] : of_) lines += fmt::format("{} {}\n", part, name);
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
  std::map<std::string, std::uint32_t> of_;
};

status check_options(const job::job& j, const pipeline_options& o) {
  if (j.device.kind != job::device_kind::cpu)
    return job::blame(j, "device.kind", "expected \"cpu\" with a model of the program's own");
  if (o.make_compute || o.make_chunk || (o.make_stage && o.loss)) return success();
  return error{
      "pipeline_options: expected make_stage and loss, or make_chunk, or make_compute, got none of "
      "them"};
}

}  // namespace

class pipeline::impl {
 public:
  impl(job::job j, pipeline_options options)
      : job_(std::move(j)),
        options_(std::move(options)),
        data_(std::make_shared<fed_source>(feeding_limit(job_))) {
    if (!options_.on_note) options_.on_note = tell_on_stderr;
    if (!options_.count) options_.count = [](const at::Tensor& target) { return target.size(0); };
    options_.on_note = named("on_note", std::move(options_.on_note));
    options_.count = named("count", std::move(options_.count));
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  ~impl() {
    if (!runner_.joinable()) return;
    if (!is_over()) {
      session_->interrupt();
      session_->interrupt();
    }
    runner_.join();
  }

  status open() {
    if (auto valid = check_options(job_, options_); !valid) return valid;
    if (auto joined = join(); !joined) return joined;
    auto setup = make_setup();
    if (!setup) return setup.failure();
    std::optional<actors::cluster> where;
    if (members_) {
      auto places =
          plan::node_places::make(job_, static_cast<std::uint32_t>(members_->members().size()));
      if (!places) return places.failure();
      where = actors::cluster{members_.get(), std::move(*places), job_.transport, token_, 0};
    }
    auto session =
        caught([&] { return actors::session::open(std::move(*setup), std::move(where)); });
    if (members_) {
      const auto mine = session ? success() : status{session.failure()};
      if (auto all = actors::agree_to_start(*members_, mine); !all) return all;
      if (auto all = compare_parameters(); !all) return all;
    }
    if (!session) return session.failure();
    session_ = std::move(*session);
    runner_ = std::thread{[this] { run(); }};
    return success();
  }

  result<step_result> pass(step_purpose purpose, std::vector<compute::microbatch> microbatches,
                           step_options how) {
    const auto expected = job_.pipeline.microbatches * job_.pipeline.replicas;
    if (microbatches.size() != expected)
      return error{fmt::format("expected {} microbatches, got {}", expected, microbatches.size())};
    const bool trains = purpose == step_purpose::training;
    const step_id step{trains ? steps_ : actors::first_evaluation + evaluations_};
    {
      // Others may have gone through it, and on to the end, if nothing here was needed for it.
      const std::lock_guard lock{mutex_};
      if (over_ && !summaries_.contains(step)) return failure();
    }
    data_->feed(step, std::move(microbatches), how.return_outputs);
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
    const auto failed_hook = std::exchange(failed_hook_, {});
    lock.unlock();
    ++(trains ? steps_ : evaluations_);
    auto outputs = data_->take_back(step);
    if (!failed_hook.empty())
      return error{failed_hook + " threw: the step is done, the pipeline goes on"};
    return result_of(summary, std::move(outputs));
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
    if (!runner_.joinable()) return failure();
    if (leads() && !is_over()) session_->finish();
    runner_.join();
    if (ended_.how != actors::ending::done) return failure();
    if (members_) members_->leave();
    return ended_.summary;
  }

  void interrupt() { session_->interrupt(); }

 private:
  result<std::vector<compute::microbatch>> cut(const batch& rows) const {
    const auto count = std::int64_t{job_.pipeline.microbatches} * job_.pipeline.replicas;
    std::vector<compute::microbatch> all(static_cast<std::size_t>(count));
    const auto share = [&](const char* what, const at::Tensor& whole, auto take) -> status {
      if (!whole.defined()) return success();
      if (whole.dim() == 0 || whole.size(0) < count)
        return error{fmt::format("batch.{}: expected at least {} rows, one a microbatch, got {}",
                                 what, count, whole.dim() == 0 ? 0 : whole.size(0))};
      const auto parts = at::tensor_split(whole, count, 0);
      // Copies, which lie where libtorch's kernels like their memory to be.
      for (std::size_t i = 0; i < all.size(); ++i)
        take(all[i], parts[i].detach().clone(at::MemoryFormat::Contiguous));
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
    actors::join_hooks hooks;
    hooks.version = version;
    hooks.description = places->describe(place->rank);
    hooks.on_refused = tell_on_stderr;
    auto joined = actors::join_job(job_, *place, std::move(hooks));
    if (!joined) return joined.failure();
    if (!joined->lost.empty()) return error{joined->lost};
    members_ = std::move(joined->members);
    token_ = joined->token;
    return success();
  }

  result<actors::session_setup> make_setup() {
    auto made = actors::make_setup_without_model(job_);
    if (!made) return made;
    auto& setup = *made;
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
      setup.slot_bytes = [of = named("slot_bytes", options_.slot_bytes)](
                             step_id, stage_id s, microbatch_id mb) { return of(s, mb); };
    else if (job_.dispatch.slot_bytes != 0)
      return job::blame(job_, "dispatch.slot_bytes",
                        "expected pipeline_options::slot_bytes beside it, got none");
    setup.trace = options_.trace;
    if (options_.on_checkpoint)
      setup.on_checkpoint = [this](const actors::checkpoint_report& r) {
        call_hook("on_checkpoint", [&] { options_.on_checkpoint(r); });
      };
    setup.on_step = [this](const actors::step_summary& s) { take(s); };
    setup.on_ending = [this] { data_->close(); };
    setup.checkpoint = actors::checkpoint_setup_of(job_, actors::identity_without_model(job_));
    if (!setup.checkpoint) return made;
    // How many steps there are is for the program to say.
    auto endless = job_;
    endless.train.steps = std::numeric_limits<std::uint64_t>::max();
    auto agreed = actors::agree_on_resume(endless, *setup.checkpoint, members_.get());
    if (const auto* cause = std::get_if<actors::end_cause>(&agreed)) return error{cause->message};
    auto* const choice = &std::get<actors::resume_choice>(agreed);
    for (const auto& line : choice->notes()) options_.on_note(line);
    setup.resume = std::move(choice->from);
    if (setup.resume) {
      steps_ = setup.resume->what.step;
      options_.on_note(fmt::format("goes on after step {} from {}", steps_, setup.resume->folder));
    }
    return made;
  }

  using chunk = result<std::unique_ptr<compute::stage_module>>;

  chunk make_chunk(const pipeline_shape& shape, const stage_place& place) {
    at::manual_seed(seed_of(job_.train.seed, place.index));
    auto made = make_by_user(shape, place);
    if (!made) return made;
    for (const auto& p : (*made)->parameters())
      if (p.tied == compute::tie::none)
        if (auto added = owners_.add(place.index, p.name); !added) return added.failure();
    return made;
  }

  chunk make_by_user(const pipeline_shape& shape, const stage_place& place) {
    const std::function<chunk()> make = [&]() -> chunk {
      if (options_.make_chunk) {
        auto made = options_.make_chunk(place);
        if (made && *made == nullptr) return error{"the factory gave no module"};
        return made;
      }
      auto s = options_.make_stage(place);
      if (!s) return s.failure();
      const auto given_by =
          place.is_first()
              ? std::string{"the batch"}
              : fmt::format("stage {}", shape.at(virtual_stage_id{place.index - 1}).stage.value());
      return make_stage_chunk(place, *std::move(s), given_by, {options_.loss}, data_);
    };
    return caught(named("its factory", make));
  }

  /// With the parts that other processes host. The same end on all.
  status compare_parameters() {
    constexpr std::chrono::seconds limit{30};
    const auto all = members_->all_gather(owners_.text(), limit);
    if (!all) return all.failure();
    parameter_owners together;
    for (const auto& lines : *all)
      if (auto added = together.add_lines(lines); !added) return added;
    return success();
  }

  /// A hook that fails must not take the actor with it that calls it.
  template <class Call>
  void call_hook(const char* name, Call call) {
    try {
      call();
    } catch (...) {
      const std::lock_guard lock{mutex_};
      failed_hook_ = name;
    }
  }

  void take(const actors::step_summary& s) {
    if (options_.on_step) call_hook("on_step", [&] { options_.on_step(s); });
    const std::lock_guard lock{mutex_};
    summaries_[s.step] = s;
    changed_.notify_all();
  }

  void run() {
    auto ended = [this]() -> actors::run_result {
      try {
        return session_->run();
      } catch (const std::exception& e) {
        data_->close();
        return {actors::ending::failed, e.what(), {}, {}};
      }
    }();
    const std::lock_guard lock{mutex_};
    ended_ = std::move(ended);
    over_ = true;
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
      case actors::ending::done: return error{"the training is over"};
      case actors::ending::interrupted: return error{"interrupted"};
      case actors::ending::bad_input:
      case actors::ending::failed:
      case actors::ending::node_lost: return error{ended_.message};
    }
    return error{ended_.message};
  }

  static step_result result_of(const actors::step_summary& s, std::vector<at::Tensor> outputs) {
    step_result r;
    r.step = s.purpose == step_purpose::training ? s.step.value() + 1 : 0;
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

  const job::job job_;
  pipeline_options options_;
  const std::shared_ptr<fed_source> data_;
  parameter_owners owners_;  ///< of what is hosted here
  std::unique_ptr<actors::membership> members_;
  std::uint64_t token_ = 0;
  std::unique_ptr<actors::session> session_;
  std::thread runner_;
  std::uint64_t steps_ = 0;
  std::uint64_t evaluations_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<step_id, actors::step_summary> summaries_;
  bool over_ = false;
  std::string failed_hook_;   ///< since the last step was told
  actors::run_result ended_;  ///< once over_
};

pipeline::pipeline(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
pipeline::~pipeline() = default;

result<std::unique_ptr<pipeline>> pipeline::open(job::job j, pipeline_options options) {
  auto state = std::make_unique<impl>(std::move(j), std::move(options));
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

}  // namespace rrfp
