/// Measures what the runtime adds between an arrival and the task that needs it, and between tasks.
///
///   scripts/build release dispatch_bench
///   build/release/bin/dispatch_bench [--steps N]
///
/// Runs real sessions in this process with a stage module that does almost nothing, and reads their
/// traces; once with threads that sleep when idle, once with threads that poll for work
/// (run.spin_us). Prints median and 95th percentile in microseconds:
///
/// round trip   from one actor to another and back, each on its own thread; beside it two threads
///              that wake each other with condition variables.
/// arrival      from the end of the task that produces an input, on its compute thread, to the
///              start of the task that needs it on an idle stage, for the last rank: the in-process
///              transport, the mailboxes of rank and supervisor, the decision and the launch.
///              Goal at TP 1: 15 us.
/// decided      the part of `arrival` after the decision.
/// machine      one sleeping thread wakes as many threads as there are ranks: the minimum for an
///              arrival on this machine if threads sleep.
/// between      from the end of a task to the start of the next on the same rank, while the stage
///              has work and decides ahead (dispatch.lookahead 1): the cost of coordinating the
///              ranks when it is hidden behind the previous task. Goal at TP 8: 10 us.
/// hidden       the share of tasks that were decided before the previous task had ended.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <rrfp/actors/control/caf_compat.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/torch_actors/torch_model.hpp>

namespace rrfp::actors {

struct echo_request {};

}  // namespace rrfp::actors

RRFP_ALLOW_MESSAGE(rrfp::actors::echo_request)

namespace rrfp::actors {
namespace {

using clock_type = std::chrono::steady_clock;

constexpr std::uint32_t degrees[] = {1, 2, 4, 8, 16};

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

std::int64_t nanoseconds_since(clock_type::time_point begun) {
  return std::chrono::nanoseconds(clock_type::now() - begun).count();
}

struct spread {
  double p50 = 0;
  double p95 = 0;
};

spread spread_of(std::vector<std::int64_t> all) {
  if (all.empty()) return {};
  std::sort(all.begin(), all.end());
  const auto at = [&](std::size_t percent) {
    return microseconds(all[(all.size() - 1) * percent / 100]);
  };
  return {at(50), at(95)};
}

// ---- the machine

/// A thread that sleeps until it is woken, like a mailbox or a compute thread.
class sleeper {
 public:
  explicit sleeper(std::function<void()> on_wake)
      : on_wake_(std::move(on_wake)), thread_([this] { run(); }) {}
  ~sleeper() {
    post(request::stop);
    thread_.join();
  }
  void wake() { post(request::wake); }

 private:
  enum class request { none, wake, stop };

  void post(request r) {
    {
      const std::lock_guard lock{mutex_};
      pending_ = r;
    }
    posted_.notify_one();
  }
  void run() {
    for (;;) {
      std::unique_lock lock{mutex_};
      posted_.wait(lock, [this] { return pending_ != request::none; });
      if (std::exchange(pending_, request::none) == request::stop) return;
      lock.unlock();
      on_wake_();
    }
  }

  const std::function<void()> on_wake_;
  std::mutex mutex_;
  std::condition_variable posted_;
  request pending_ = request::none;
  std::thread thread_;
};

/// Long enough for all threads to fall asleep again.
void rest() { std::this_thread::sleep_for(std::chrono::microseconds{300}); }

/// Time from the notification of a sleeping thread, which notifies `count` others, until the last
/// of these runs.
spread wake_ups(std::uint32_t count) {
  std::vector<std::int64_t> all;
  std::mutex mutex;
  std::condition_variable done;
  std::uint32_t left = 0;
  std::int64_t last = 0;
  clock_type::time_point begun;
  {
    std::vector<std::unique_ptr<sleeper>> ranks;
    for (std::uint32_t i = 0; i < count; ++i)
      ranks.push_back(std::make_unique<sleeper>([&] {
        const auto now = nanoseconds_since(begun);
        const std::lock_guard lock{mutex};
        last = std::max(last, now);
        if (--left == 0) done.notify_one();
      }));
    sleeper mailbox{[&] {
      for (const auto& r : ranks) r->wake();
    }};
    for (int i = 0; i < 1000; ++i) {
      rest();
      {
        const std::lock_guard lock{mutex};
        left = count;
        last = 0;
      }
      begun = clock_type::now();
      mailbox.wake();
      std::unique_lock lock{mutex};
      done.wait(lock, [&] { return left == 0; });
      all.push_back(last);
    }
  }
  return spread_of(std::move(all));
}

spread round_trip_of_threads() {
  std::vector<std::int64_t> all;
  std::mutex mutex;
  std::condition_variable replied;
  bool answered = false;
  {
    sleeper other{[&] {
      const std::lock_guard lock{mutex};
      answered = true;
      replied.notify_one();
    }};
    for (int i = 0; i < 5000; ++i) {
      const auto begun = clock_type::now();
      other.wake();
      std::unique_lock lock{mutex};
      replied.wait(lock, [&] { return std::exchange(answered, false); });
      all.push_back(nanoseconds_since(begun));
    }
  }
  return spread_of(std::move(all));
}

// ---- actors

class echo final : public actor_base {
 public:
  explicit echo(caf::actor_config& config) : actor_base(config) {}
  caf::behavior make_behavior() override {
    return {
        [this](const caf::actor& back) { back_ = back; },
        [this](echo_request p) { post(back_, p); },
        [this](caf::ok_atom) { quit(); },
    };
  }
  void on_exit() override { back_ = nullptr; }

 private:
  caf::actor back_;
};

class caller final : public actor_base {
 public:
  caller(caf::actor_config& config, caf::actor other, std::vector<std::int64_t>* all)
      : actor_base(config), other_(std::move(other)), all_(all) {}
  caf::behavior make_behavior() override {
    post(other_, caf::actor_cast<caf::actor>(this));
    call();
    return {[this](echo_request) {
      all_->push_back(nanoseconds_since(begun_));
      if (all_->size() < 5000) return call();
      post(other_, caf::ok_atom::value);
      quit();
    }};
  }
  void on_exit() override { other_ = nullptr; }

 private:
  void call() {
    begun_ = clock_type::now();
    post(other_, echo_request{});
  }

  caf::actor other_;
  std::vector<std::int64_t>* const all_;
  clock_type::time_point begun_;
};

spread round_trip_of_actors() {
  std::vector<std::int64_t> all;
  {
    caf::actor_system_config config;
    caf::actor_system system{config};
    system.spawn<caller, caf::detached>(system.spawn<echo, caf::detached>(), &all);
    system.await_all_actors_done();
  }
  return spread_of(std::move(all));
}

// ---- sessions

class tiny_stage final : public compute::stage_module {
 public:
  explicit tiny_stage(virtual_stage_id vs)
      : parameters_{{"scale." + std::to_string(vs.value()),
                     at::ones({1}, at::kFloat).requires_grad_(true)}} {}

  std::span<const compute::parameter> parameters() const override { return parameters_; }
  at::Tensor forward(const compute::forward_input& in) override {
    auto out = in.input.to(at::kFloat) * parameters_[0].value;
    return in.targets.defined() ? out.sum() : out;
  }

 private:
  std::vector<compute::parameter> parameters_;
};

class one_token final : public compute::batch_source {
 public:
  explicit one_token(std::uint32_t microbatches) : microbatches_(microbatches) {}
  compute::microbatch load(step_id, microbatch_id) const override { return {token_, token_, 1}; }
  std::int64_t step_tokens(step_id) const override { return microbatches_; }

 private:
  const std::uint32_t microbatches_;
  const at::Tensor token_ = at::ones({1, 1}, at::kLong);
};

/// The tasks of a run without its first step, by stage and launch, with one record per rank.
using launches = std::map<std::tuple<step_id, stage_id, launch_seq>, std::vector<task_record>>;

struct scenario {
  std::uint32_t stages = 1;
  std::uint32_t microbatches = 1;
  std::uint32_t lookahead = 0;
  double task_ms = 0;
};

launches run(const scenario& wanted, std::uint32_t ranks, std::chrono::microseconds spin,
             std::uint64_t steps) {
  trace_recorder trace;
  session_setup s;
  s.shape = pipeline_shape{wanted.stages, 1, wanted.microbatches, placement::linear};
  s.ranks = ranks;
  s.lookahead = wanted.lookahead;
  s.spin = spin;
  s.limits.assign(wanted.stages, memory_limit{});
  const auto set = policies::registry().make("bf", s.shape);
  if (!set) throw std::runtime_error(set.message());
  s.rule = {[set = *set](const pipeline_shape&, stage_id stage) { return set->make(stage); }};
  s.train.steps = steps + 1;
  torch_model model;
  model.make_chunk = [](virtual_stage_id vs, const std::shared_ptr<compute::rank_group>&) {
    return result<std::unique_ptr<compute::stage_module>>{std::make_unique<tiny_stage>(vs)};
  };
  model.data = std::make_shared<one_token>(wanted.microbatches);
  train(s, std::move(model));
  if (wanted.task_ms > 0)
    s.delays.compute = [ms = wanted.task_ms](step_id, const rank_address&, const task&) {
      return ms;
    };
  s.trace = &trace;
  auto opened = session::open(std::move(s));
  if (!opened) throw std::runtime_error(opened.message());
  if (const auto r = (*opened)->run(); r.how != ending::done) throw std::runtime_error(r.message);
  launches all;
  const auto records = trace.records();
  for (const auto& t : records.tasks)
    if (t.step != step_id{0}) all[{t.step, t.stage, t.launched.seq}].push_back(t);
  return all;
}

struct arrival_times {
  spread whole;
  spread after_decision;
};

arrival_times arrivals(std::uint32_t ranks, std::chrono::microseconds spin, std::uint64_t steps) {
  std::map<std::tuple<step_id, stage_id, task_kind>, std::vector<task_record>> by_task;
  for (const auto& [_, records] : run({2, 1, 0, 0}, ranks, spin, steps))
    by_task[{records[0].step, records[0].stage, records[0].launched.what.kind}] = records;
  std::vector<std::int64_t> whole;
  std::vector<std::int64_t> after;
  for (const auto& [key, consumers] : by_task) {
    const auto [step, stage, kind] = key;
    const bool forward = kind == task_kind::forward;
    if (forward != (stage == stage_id{1})) continue;
    const auto& producers = by_task.at({step, stage_id{forward ? 0u : 1u}, kind});
    std::int64_t produced = 0;
    std::int64_t started = 0;
    for (const auto& r : producers) produced = std::max(produced, r.end);
    for (const auto& r : consumers) started = std::max(started, r.begin);
    whole.push_back(started - produced);
    after.push_back(started - consumers[0].decided);
  }
  return {spread_of(std::move(whole)), spread_of(std::move(after))};
}

struct task_gaps {
  spread each;
  double hidden = 0;
};

task_gaps between_tasks(std::uint32_t ranks, std::chrono::microseconds spin, std::uint64_t steps) {
  const auto all = run({1, 32, 1, 2.0}, ranks, spin, steps);
  std::vector<std::int64_t> gaps;
  std::size_t hidden = 0;
  for (auto at = all.begin(); at != all.end(); ++at) {
    const auto next = std::next(at);
    if (next == all.end() || std::get<0>(next->first) != std::get<0>(at->first)) continue;
    for (const auto& before : at->second)
      for (const auto& after : next->second) {
        if (after.rank != before.rank) continue;
        gaps.push_back(after.begin - before.end);
        hidden += after.decided < before.end;
      }
  }
  const auto share =
      gaps.empty() ? 0.0 : static_cast<double>(hidden) / static_cast<double>(gaps.size());
  return {spread_of(std::move(gaps)), share};
}

std::string text_of(const spread& s) { return fmt::format("{:6.1f} / {:6.1f}", s.p50, s.p95); }

void print_sessions(std::uint64_t steps, std::chrono::microseconds spin) {
  fmt::print("\nspin {} us\n{:>4}  {:>15}  {:>15}  {:>15}  {:>15}  {}\n", spin.count(), "TP",
             "arrival", "decided", "machine", "between", "hidden");
  for (const auto ranks : degrees) {
    const auto machine = wake_ups(ranks);
    const auto arrival = arrivals(ranks, spin, steps);
    const auto between = between_tasks(ranks, spin, std::max<std::uint64_t>(steps / 100, 2));
    fmt::print("{:4}  {}  {}  {}  {}  {:5.1f} %\n", ranks, text_of(arrival.whole),
               text_of(arrival.after_decision), text_of(machine), text_of(between.each),
               between.hidden * 100);
    std::fflush(stdout);
  }
}

void print_all(std::uint64_t steps) {
  const auto actors = round_trip_of_actors();
  const auto threads = round_trip_of_threads();
  fmt::print("p50 / p95 in us\nround trip: actors {}, threads {}, ratio {:.2f}\n", text_of(actors),
             text_of(threads), actors.p50 / threads.p50);
  for (const int spin : {0, 1000}) print_sessions(steps, std::chrono::microseconds{spin});
}

}  // namespace
}  // namespace rrfp::actors

int main(int argc, char** argv) {
  std::uint64_t steps = 1000;
  if (argc == 3 && std::strcmp(argv[1], "--steps") == 0)
    steps = std::strtoull(argv[2], nullptr, 10);
  else if (argc != 1)
    steps = 0;
  if (steps == 0) {
    std::fprintf(stderr, "usage: dispatch_bench [--steps N], N at least 1\n");
    return 2;
  }
  try {
    rrfp::actors::print_all(steps);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dispatch_bench: %s\n", e.what());
    return 1;
  }
}
