// Emulated devices: the order of their work, and runs of the real runtime on them.
#include <atomic>
#include <cmath>
#include <future>
#include <random>

#include <rrfp/core/transcript.hpp>
#include <rrfp/device/virtual_device.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/simulate/stage_costs.hpp>

#include "run_setup.hpp"

#include "run_session.hpp"

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::actors::test;
using namespace std::chrono_literals;

/// F takes 2 ms, B and W 1 ms each.
double task_ms(step_id, const rank_address&, const task& t) {
  return t.kind == task_kind::forward || t.kind == task_kind::backward_weight ? 2 : 1;
}

session_setup emulated_setup(const choice_of_run& c, std::uint64_t steps) {
  job::train_options train;
  train.steps = steps;
  auto s = run_setup(c, train);
  s.emulated = emulated_device{
      task_ms,
      [](step_id, replica_id, virtual_stage_id, const task&) { return std::int64_t{4096}; }, 32};
  s.slot_bytes = [](step_id, replica_id, stage_id, microbatch_id) { return std::uint64_t{1000}; };
  return s;
}

/// Tells a function of each launch.
class observed_policy final : public policy {
 public:
  observed_policy(std::unique_ptr<policy> inner, std::function<void(const task&)> tell)
      : inner_(std::move(inner)), tell_(std::move(tell)) {}

  std::string_view name() const override { return inner_->name(); }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return inner_->backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return inner_->lanes(); }
  std::uint32_t lane_of(const task& t) const override { return inner_->lane_of(t); }
  std::uint64_t rank(const task& t) const override { return inner_->rank(t); }
  lane_order order(const stage_view& now) const override { return inner_->order(now); }
  void reset() override { inner_->reset(); }
  void launched(const task& t) override {
    tell_(t);
    inner_->launched(t);
  }
  void waited() override { inner_->waited(); }

 private:
  const std::unique_ptr<policy> inner_;
  const std::function<void(const task&)> tell_;
};

}  // namespace

TEST_CASE("a virtual device runs its work in order and stays busy as long as the work returns") {
  timer_thread timer{"test devices"};
  virtual_device device{timer};
  std::vector<int> ran;
  std::promise<void> done;
  const auto begun = std::chrono::steady_clock::now();
  device.post([&] { ran.push_back(0); });
  device.occupy(
      [&] {
        ran.push_back(1);
        return 20ms;
      },
      [&](const auto&) { ran.push_back(2); });
  device.occupy(
      [&] {
        ran.push_back(3);
        return 20ms;
      },
      [&](const auto&) { ran.push_back(4); });
  device.post([&] { done.set_value(); });
  done.get_future().wait();
  CHECK(ran == std::vector<int>{0, 1, 2, 3, 4});
  CHECK(std::chrono::steady_clock::now() - begun >= 40ms);
}

TEST_CASE("many virtual devices are busy at the same time on one thread") {
  timer_thread timer{"test devices"};
  std::vector<std::unique_ptr<virtual_device>> devices;
  std::atomic<int> left = 200;
  std::promise<void> done;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    devices.push_back(std::make_unique<virtual_device>(timer));
    devices.back()->occupy([] { return 50ms; },
                           [&](const auto&) {
                             if (--left == 0) done.set_value();
                           });
  }
  done.get_future().wait();
  const auto took = std::chrono::steady_clock::now() - begun;
  CHECK(took >= 50ms);
  CHECK(took < 5s);  // sequentially they would take 10 s
}

TEST_CASE("a stopped virtual device drops queued work and pending callbacks") {
  timer_thread timer{"test devices"};
  std::atomic<bool> after = false;
  {
    virtual_device device{timer};
    std::promise<void> begun;
    device.occupy(
        [&] {
          begun.set_value();
          return 30ms;
        },
        [&](const auto&) { after = true; });
    device.post([&] { after = true; });
    begun.get_future().wait();
    device.stop();
    device.post([&] { after = true; });
  }
  std::this_thread::sleep_for(60ms);
  CHECK_FALSE(after);
}

TEST_CASE("an emulated run takes the time of its tasks and holds the expected slots") {
  const pipeline_shape shape{4, 1, 8, placement::linear};
  for (const auto mode : {dispatch_mode::in_order, dispatch_mode::ready}) {
    INFO(name(mode));
    const choice_of_run c{shape, mode, "one_f_one_b"};
    const auto r = run_session(emulated_setup(c, 3));
    INFO(r.message);
    REQUIRE(r.how == ending::done);
    CHECK(r.summary.steps == 3);
    CHECK(r.summary.tokens == 3 * 8 * 32);
    // A lower bound: the last stage's work plus the way there and back.
    CHECK(r.summary.step_ms_p50 >= 8 * 4 + 3 * 2 + 3 * 2);
    for (const auto& stage : r.summary.stages) CHECK(stage.busy_ms > 0);
    for (std::uint32_t s = 0; s < 4; ++s) {
      INFO("stage " << s);
      if (mode == dispatch_mode::in_order) {
        CHECK(r.summary.stages[s].memory.slots_peak == 4 - s);
        CHECK(r.summary.stages[s].peak_bytes == 1000 * (4 - s));
      }
    }
  }
}

TEST_CASE("the thread on which a task ends decides what runs next, even if slots have sizes") {
  const pipeline_shape shape{2, 1, 32, placement::linear};
  auto setup = emulated_setup({shape, dispatch_mode::ready, "bfw"}, 3);
  REQUIRE(setup.slot_bytes);
  std::atomic<int> launched = 0, on_timer = 0;
  setup.rule.make_policy = [&, inner = setup.rule.make_policy](const pipeline_shape& p,
                                                               stage_id stage) {
    return std::make_unique<observed_policy>(inner(p, stage), [&](const task&) {
      char name[16] = {};
      pthread_getname_np(pthread_self(), name, sizeof name);
      ++launched;
      on_timer += name == std::string_view{"virtual devices"};
    });
  };
  const auto r = run_session(std::move(setup));
  INFO(r.message);
  REQUIRE(r.how == ending::done);
  CHECK(launched == 3 * 2 * 32 * 3);
  // Only the first task of a step follows from a message of the job.
  CHECK(on_timer > launched * 3 / 4);
}

TEST_CASE("128 emulated ranks train in one process") {
  const pipeline_shape shape{16, 1, 8, placement::linear};
  auto setup = emulated_setup({shape, dispatch_mode::ready, "bfw"}, 2);
  setup.ranks = 8;
  const auto r = run_session(std::move(setup));
  INFO(r.message);
  REQUIRE(r.how == ending::done);
  CHECK(r.summary.steps == 2);
  // A lower bound: the way there, F and B of the last stage, the way back, and W of the first one.
  CHECK(r.summary.step_ms_p50 >= 15 * 2 + 8 * 3 + 15 + 1);
}

TEST_CASE("an emulated run that is interrupted during its tasks ends at once") {
  const pipeline_shape shape{4, 1, 8, placement::linear};
  auto setup = emulated_setup({shape, dispatch_mode::ready, "bfw"}, 1000);
  setup.emulated->task_ms = [](step_id, const rank_address&, const task&) { return 300.0; };
  auto opened = session::open(std::move(setup));
  REQUIRE(opened.ok());
  auto running = std::async(std::launch::async, [&] { return (*opened)->run(); });
  std::this_thread::sleep_for(100ms);
  (*opened)->interrupt();
  REQUIRE(running.wait_for(20s) == std::future_status::ready);
  CHECK(running.get().how == ending::interrupted);
}

namespace {

/// The stragglers that a run reports; `ms`: of a task.
std::vector<straggler_report> stragglers_of(
    std::uint32_t ranks, std::function<double(step_id, const rank_address&, const task&)> ms) {
  const choice_of_run c{{4, 1, 8, placement::linear}, dispatch_mode::ready, "bfw"};
  auto setup = emulated_setup(c, straggler_watch::window + 4);
  setup.ranks = ranks;
  setup.emulated->task_ms = std::move(ms);
  std::vector<straggler_report> told;
  setup.on_straggler = [&](const straggler_report& r) { told.push_back(r); };
  const auto r = run_session(std::move(setup));
  INFO(r.message);
  REQUIRE(r.how == ending::done);
  return told;
}

}  // namespace

TEST_CASE(
    "a slow stage, or a slow rank of a stage, is reported as a straggler, once, and no other") {
  const auto ranks = GENERATE(1u, 2u);
  const auto late = GENERATE(0u, 1u, 3u);
  // Of two ranks the second one.
  const auto told = stragglers_of(ranks, [&](step_id, const rank_address& at, const task&) {
    return at.stage.value() == late && at.rank.value() + 1 == ranks ? 3.0 : 1.0;
  });
  REQUIRE(told.size() == 1);
  CHECK(told[0].what.stage == stage_id{late});
  CHECK((told[0].what.ranks == std::vector{rank_id{ranks - 1}}));
  CHECK(told[0].step == straggler_watch::window);
  CHECK(told[0].what.late > 0.3);
  CHECK(told[0].what.waiting > 0.5);
  CHECK(told[0].nodes.empty());
}

TEST_CASE("a balanced run reports no straggler, with delays that fall on all and without") {
  const auto sigma = GENERATE(0.0, 0.5);
  const auto told = stragglers_of(1, [&](step_id step, const rank_address& at, const task& t) {
    std::mt19937_64 random{step.value() * 1009 + at.stage.value() * 101 + t.mb.value() * 7 +
                           static_cast<std::uint64_t>(t.kind)};
    random.discard(3);
    return std::exp(std::normal_distribution{0.0, sigma}(random));
  });
  CHECK(told.empty());
}

TEST_CASE("a replica with a slow stage leaves microbatches to the others") {
  const choice_of_run c{{2, 1, 8, placement::linear}, dispatch_mode::ready, "bfw"};
  auto setup = emulated_setup(c, 20);
  setup.replicas = 4;
  setup.measures_shares = true;
  setup.emulated->task_ms = [](step_id, const rank_address& at, const task&) {
    return at.replica == replica_id{2} && at.stage == stage_id{1} ? 4.0 : 2.0;
  };
  std::vector<std::vector<std::uint32_t>> shares;
  setup.on_step = [&](const step_summary& s) {
    CHECK(s.losses.size() == 32);
    shares.push_back(s.shares);
  };
  const auto r = run_session(std::move(setup));
  INFO(r.message);
  REQUIRE(r.how == ending::done);
  REQUIRE(shares.size() == 20);
  CHECK(shares.front().empty());
  REQUIRE(shares.back().size() == 4);
  CHECK(shares.back()[2] < 7);
  for (const auto other : {0, 1, 3}) CHECK(shares.back()[other] > 8);
}

TEST_CASE("a replica keeps its microbatches if the policy is not defined for other numbers") {
  const choice_of_run c{{2, 1, 8, placement::linear}, dispatch_mode::ready, "bfw"};
  auto setup = emulated_setup(c, 10);
  setup.replicas = 2;
  setup.measures_shares = true;
  setup.rule.make_policy = [c](const pipeline_shape& shape, stage_id stage) {
    if (shape.microbatches != 8) throw std::runtime_error("8 microbatches");
    return policies_of(c, shape)->make(stage);
  };
  setup.emulated->task_ms = [](step_id, const rank_address& at, const task&) {
    return at.replica == replica_id{1} ? 2.0 : 1.0;
  };
  bool shared = false;
  setup.on_step = [&](const step_summary& s) { shared = shared || !s.shares.empty(); };
  const auto r = run_session(std::move(setup));
  INFO(r.message);
  CHECK(r.how == ending::done);
  CHECK_FALSE(shared);
}
