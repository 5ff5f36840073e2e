/// User functions that do not return: every wait for them has a limit.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "program.hpp"
#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;
using rrfp::test::scratch_folder;

namespace {

/// pass() blocks until open() is called.
class gate {
 public:
  void pass() {
    std::unique_lock lock{mutex_};
    has_caller_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock{mutex_};
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_caller() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return has_caller_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, has_caller_ = false;
};

struct stuck_program {
  std::shared_ptr<gate> at = std::make_shared<gate>();
  std::weak_ptr<int> alive;  ///< expires when the pipeline and its threads are gone
  std::mutex mutex;
  std::vector<std::string> notes, reports;

  /// Part 1 blocks at the gate in its third forward, in steps and in evaluations.
  pipeline_options options() {
    auto o = small_options();
    const auto life = std::make_shared<int>();
    alive = life;
    o.make_stage = [blocker = at, life](const stage_place& place) {
      auto s = part_at(place);
      if (place.index == 1)
        s.forward = [blocker, life, inner = s.forward, calls = 0](const at::Tensor& x) mutable {
          if (++calls == 3) blocker->pass();
          return inner(x);
        };
      return s;
    };
    o.on_note = [this](const std::string& line) { notes.push_back(line); };
    o.on_report = [this](const std::string& text) {
      const std::lock_guard lock{mutex};
      reports.push_back(text);
    };
    return o;
  }

  /// Opens the gate; true once the detached thread has released the memory of the pipeline.
  bool ends() {
    at->open();
    for (int i = 0; i < 2000 && !alive.expired(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    return alive.expired();
  }
};

job::job impatient_job(double hang_timeout_s = 2) {
  auto j = job_of("[dispatch]\nmode = \"in-order\"\npolicy = \"gpipe\"\n");
  j.run.hang_timeout_s = hang_timeout_s;
  return j;
}

}  // namespace

TEST_CASE("if a module never returns, step and eval fail with the cause and a hang report") {
  for (const bool trains : {true, false}) {
    stuck_program program;
    const scratch_folder folder;
    auto j = impatient_job();
    j.checkpoint.dir = folder / "saved";
    auto p = pipeline::open(j, program.options()).value();
    const auto r = trains ? p->step(batch_of(0)) : p->eval(batch_of(0));
    REQUIRE_FALSE(r);
    const std::string cause = std::string{"cause: stage 1 rank 0 has not finished F2 of "} +
                              (trains ? "step 1" : "evaluation 1") + ", launched ";
    CHECK_THAT(r.message(), Contains("no task finished for 2.") && Contains(cause));
    CHECK(p->step(batch_of(1)).message() == r.message());
    CHECK(p->eval(batch_of(1)).message() == r.message());
    CHECK(p->save().message() == r.message());
    CHECK(p->finish().message() == r.message());
    {
      const std::lock_guard lock{program.mutex};
      REQUIRE(program.reports.size() == 1);
      CHECK_THAT(program.reports[0], Contains(cause) && Contains("the last"));
    }
    p.reset();  // the module still does not return
    REQUIRE(program.notes.size() == 1);
    CHECK_THAT(program.notes[0], Contains("a user function has not returned"));
    CHECK_FALSE(program.alive.expired());
    CHECK(program.ends());
  }
}

TEST_CASE("an interrupt does not wait for a module that never returns") {
  stuck_program program;
  auto p = pipeline::open(impatient_job(), program.options()).value();
  std::thread other{[&] {
    program.at->wait_for_caller();
    p->interrupt();
  }};
  CHECK(p->step(batch_of(0)).message() == "interrupted");
  other.join();
  CHECK(p->finish().message() == "interrupted");
  p.reset();
  CHECK(program.notes.size() == 1);
  CHECK(program.ends());
}

TEST_CASE("report() writes a hang report, and the training continues") {
  stuck_program program;
  auto options = program.options();
  options.on_report = [&, inner = options.on_report](const std::string& text) {
    inner(text);
    program.at->open();
  };
  auto p = pipeline::open(impatient_job(60), options).value();
  std::thread other{[&] {
    program.at->wait_for_caller();
    p->report("asked by the test");
  }};
  CHECK(p->step(batch_of(0)).value().loss == train_plainly(5, 1).losses[0]);
  other.join();
  CHECK(p->finish().ok());
  REQUIRE(program.reports.size() == 1);
  CHECK_THAT(program.reports[0],
             Contains("asked by the test") && Contains("stage 1 rank 0 has not finished F2"));
}

TEST_CASE("a hook that never returns blocks neither the steps nor the end") {
  const scratch_folder folder;
  stuck_program program;
  auto options = program.options();
  options.make_stage = part_at;
  options.on_checkpoint = [blocker = program.at](const actors::checkpoint_report&) {
    blocker->pass();
  };
  auto j = impatient_job();
  j.checkpoint.dir = folder / "saved";
  j.checkpoint.every = 1;
  auto p = pipeline::open(j, options).value();
  for (std::uint64_t step = 0; step < 3; ++step) CHECK(p->step(batch_of(step)).ok());
  CHECK(p->finish().value().checkpoints == 3);
  p.reset();
  CHECK(program.notes.size() == 1);
  program.at->open();
}

}  // namespace rrfp::testing
