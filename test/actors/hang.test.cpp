// A run that hangs ends with a report that names what the stages wait for. The tests inject the
// hangs: messages that never arrive, tasks that do not return, ranks that do not enter a
// collective.
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "small_session.hpp"

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::actors::test;
using Catch::Matchers::Contains;
using Catch::Matchers::Matches;

const pipeline_shape shape{3, 1, 6, placement::linear};
constexpr double endless_ms = 1e7;

session_setup setup_of(std::uint32_t slots = 0, const std::string& policy = "bfw") {
  auto train = compute::test::small_train();
  train.steps = 4;
  choice_of_run choice{shape};
  choice.slots = slots;
  choice.policy = policy;
  auto setup = small_setup(choice, compute::test::small_model(), train);
  setup.name = "hanging";
  setup.hang_timeout_s = 1.5;
  return setup;
}

task forward(std::uint32_t mb) { return {task_kind::forward, microbatch_id{mb}, chunk_id{0}}; }

struct hung_run {
  run_result result;
  std::string text;  ///< passed to on_report

  /// The first one.
  std::string cause() const {
    const auto at = text.find("cause: ");
    return at == std::string::npos ? text : text.substr(at, text.find('\n', at) - at);
  }
};

hung_run run_until_hang(session_setup setup, std::function<void()> release = {}) {
  hung_run r;
  std::mutex mutex;
  setup.on_report = [&](const std::string& text) {
    {
      const std::lock_guard lock{mutex};
      r.text += text;
    }
    if (release) release();
  };
  auto opened = session::open(std::move(setup));
  REQUIRE(opened.ok());
  r.result = (*opened)->run();
  CHECK(r.result.how == ending::failed);
  return r;
}

/// Blocks a thread until the test opens it.
class gate {
 public:
  void wait() {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, std::chrono::seconds{60}, [this] { return open_; });
  }
  void open() {
    {
      const std::lock_guard lock{mutex_};
      open_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// Loads like uneven_source, but one rank blocks on one microbatch.
class stuck_source final : public compute::batch_source {
 public:
  stuck_source(std::string thread, step_id step, microbatch_id mb, std::shared_ptr<gate> at)
      : thread_(std::move(thread)), step_(step), mb_(mb), gate_(std::move(at)) {}

  compute::microbatch load(step_id step, microbatch_id mb) const override {
    char name[16] = {};
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    if (step == step_ && mb == mb_ && thread_ == name) gate_->wait();
    return good_.load(step, mb);
  }
  std::int64_t step_tokens(step_id step) const override { return good_.step_tokens(step); }

 private:
  const std::string thread_;
  const step_id step_;
  const microbatch_id mb_;
  const std::shared_ptr<gate> gate_;
  compute::test::uneven_source good_{shape.microbatches};
};

struct hang_point {
  std::uint64_t step;
  std::uint32_t stage;
  std::uint32_t mb;
};

}  // namespace

TEST_CASE("the report names a lost activation, its sender and the stage that waits") {
  const auto p = GENERATE(hang_point{0, 1, 0}, hang_point{1, 2, 4}, hang_point{1, 1, 5},
                          hang_point{2, 2, 0}, hang_point{3, 1, 3});
  auto setup = setup_of();
  setup.delays.link = [=](step_id step, virtual_stage_id to, const rank_address&, const task& t) {
    const bool lost = step.value() == p.step && to.value() == p.stage && t == forward(p.mb);
    return lost ? endless_ms : 0.0;
  };
  const auto r = run_until_hang(std::move(setup));
  INFO(r.text);
  CHECK(r.cause() == "cause: the activation for F" + std::to_string(p.mb) + " left stage " +
                         std::to_string(p.stage - 1) + " and has not arrived at stage " +
                         std::to_string(p.stage) + " rank 0, step " + std::to_string(p.step + 1));
  CHECK_THAT(r.result.message, Contains(r.cause()));
}

TEST_CASE("the report names a rank that hangs and the task in which it hangs") {
  const auto p = GENERATE(hang_point{0, 0, 0}, hang_point{1, 0, 3}, hang_point{1, 1, 2},
                          hang_point{2, 1, 5}, hang_point{3, 0, 5});
  auto setup = setup_of();
  setup.delays.compute = [=](step_id step, const rank_address& at, const task& t) {
    const bool dies = step.value() == p.step && at.stage.value() == p.stage && t == forward(p.mb);
    return dies ? endless_ms : 0.0;
  };
  const auto r = run_until_hang(std::move(setup));
  INFO(r.text);
  CHECK_THAT(r.cause(), Contains("cause: stage " + std::to_string(p.stage) +
                                 " rank 0 has not finished F" + std::to_string(p.mb) + " of step " +
                                 std::to_string(p.step + 1) + ", launched "));
  CHECK_THAT(r.text, Contains("comes from stage " + std::to_string(p.stage)));
}

TEST_CASE("the report names a slot that is never released, its holder and the missing input") {
  const auto p = GENERATE(hang_point{0, 0, 0}, hang_point{1, 0, 2}, hang_point{1, 1, 1},
                          hang_point{2, 1, 3}, hang_point{3, 0, 4});
  auto setup = setup_of(1);
  setup.delays.link = [=](step_id step, virtual_stage_id to, const rank_address&, const task& t) {
    const bool lost = step.value() == p.step && to.value() == p.stage && is_backward(t.kind) &&
                      t.mb.value() == p.mb;
    return lost ? endless_ms : 0.0;
  };
  const auto r = run_until_hang(std::move(setup));
  INFO(r.text);
  const auto mb = std::to_string(p.mb);
  const auto stage = std::to_string(p.stage);
  CHECK_THAT(r.cause(), Contains("the gradient for B" + mb + " left stage " +
                                 std::to_string(p.stage + 1) + " and has not arrived at stage " +
                                 stage + " rank 0, step " + std::to_string(p.step + 1)) &&
                            Contains("microbatch " + mb + " never releases the slot"));
  CHECK_THAT(r.text, Contains("slot held by microbatch " + mb));
}

TEST_CASE("the report names a tensor-parallel rank that hangs") {
  SECTION("in a task that the other rank has finished") {
    const auto p = GENERATE(hang_point{0, 0, 0}, hang_point{1, 1, 2}, hang_point{3, 2, 5});
    const std::uint32_t rank = p.mb % 2;
    auto setup = setup_of();
    setup.ranks = 2;
    setup.delays.compute = [=](step_id step, const rank_address& at, const task& t) {
      const bool stays = step.value() == p.step && at.stage.value() == p.stage &&
                         t == forward(p.mb) && at.rank.value() == rank;
      return stays ? endless_ms : 0.0;
    };
    const auto r = run_until_hang(std::move(setup));
    INFO(r.text);
    CHECK_THAT(r.cause(),
               Contains("cause: stage " + std::to_string(p.stage) + " rank " +
                        std::to_string(rank) + " has not finished F" + std::to_string(p.mb)) &&
                   Contains("; rank " + std::to_string(1 - rank) + " finished it"));
  }
  SECTION("before a collective that the other rank is in") {
    const std::uint32_t rank = GENERATE(0u, 1u);
    auto setup = setup_of();
    setup.ranks = 2;
    const auto here = std::make_shared<gate>();
    auto parts = small_parts(shape, compute::test::small_model(), setup.train);
    parts.data = std::make_shared<stuck_source>("compute 0." + std::to_string(rank), step_id{1},
                                                microbatch_id{3}, here);
    train(setup, std::move(parts));
    const auto r = run_until_hang(std::move(setup), [here] { here->open(); });
    INFO(r.text);
    CHECK_THAT(r.cause(), Contains("cause: stage 0 rank " + std::to_string(rank) +
                                   " has not entered the collective of F3, step 2, that rank " +
                                   std::to_string(1 - rank) + " is in"));
    CHECK_THAT(r.text, Contains("in a collective with the ranks of the stage for"));
  }
}

TEST_CASE("a report holds the last decisions of each stage and what its ranks hold") {
  auto setup = setup_of(2);
  setup.delays.link = [](step_id step, virtual_stage_id to, const rank_address&, const task& t) {
    return step == step_id{1} && to == virtual_stage_id{2} && t == forward(4) ? endless_ms : 0.0;
  };
  const auto r = run_until_hang(std::move(setup));
  INFO(r.text);
  for (const auto* stage : {"  stage 0: step 2", "  stage 1: step 2", "  stage 2: step 2"})
    CHECK_THAT(r.text, Contains(stage));
  CHECK_THAT(r.text, Contains("hanging: no task finished for 1.") &&
                         Contains("input of F4 from stage 1 is missing on rank 0") &&
                         Contains("step 1 launch 0 F0: ") && Contains("wait (input) for F4") &&
                         Contains("stage 2 rank 0: 0 inputs waiting"));
}

TEST_CASE("a requested report does not change the run") {
  auto setup = setup_of();
  setup.train.steps = 12;
  setup.hang_timeout_s = 60;
  setup.delays.compute = [](step_id, const rank_address&, const task&) { return 2.0; };
  std::mutex mutex;
  std::vector<std::string> reports;
  setup.on_report = [&](const std::string& text) {
    const std::lock_guard lock{mutex};
    reports.push_back(text);
  };
  auto plain = setup;
  auto opened = session::open(std::move(setup));
  REQUIRE(opened.ok());
  std::thread other{[&] {
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds{100});
      (*opened)->report("by the test");
    }
  }};
  const auto r = (*opened)->run();
  other.join();
  CHECK(r.how == ending::done);
  const auto same = (*session::open(std::move(plain)))->run();
  CHECK(r.summary.weights_xxh64 == same.summary.weights_xxh64);
  const std::lock_guard lock{mutex};
  REQUIRE_FALSE(reports.empty());
  CHECK_THAT(reports[0], Contains("hanging: by the test") && Contains("stage 1: step "));
}
