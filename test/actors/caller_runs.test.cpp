/// Where an actor runs that a thread has posted to.
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <rrfp/actors/control/caf_compat.hpp>
#include <rrfp/actors/control/messages.hpp>

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;

using handler = std::function<void(const end_step&)>;

template <class... Bases>
class worker final : public actor_base, public Bases... {
 public:
  worker(caf::actor_config& config, handler handle)
      : actor_base(config), handle_(std::move(handle)) {}
  caf::behavior make_behavior() override {
    return {[this](const end_step& m) { handle_(m); }, [this](const stop&) { quit(); }};
  }

 private:
  handler handle_;
};
using patient = worker<>;
using quick = worker<runs_anywhere>;

/// One actor, and the threads on which it has handled messages.
template <class Actor>
struct observed {
  caf::actor_system_config config;
  caf::actor_system system{config};
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  std::vector<std::uint64_t> steps;
  handler also;
  caf::actor actor = system.spawn<Actor>([this](const end_step& m) {
    handler then;
    {
      const std::lock_guard lock{mutex};
      threads.push_back(std::this_thread::get_id());
      steps.push_back(m.step.value());
      then = also;
    }
    if (then) then(m);
  });

  observed() { wait_until_idle(); }
  ~observed() { end(); }

  /// A new actor is initialized by the scheduler; afterwards it waits for messages.
  void wait_until_idle() {
    post(actor, end_step{step_id{0}});
    while (count() == 0) std::this_thread::yield();
    // The scheduler's thread may still be in the handler's turn.
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    const std::lock_guard lock{mutex};
    threads.clear();
    steps.clear();
  }
  std::size_t count() {
    const std::lock_guard lock{mutex};
    return threads.size();
  }
  /// From now on each message is also passed to `h`.
  void pass_to(handler h) {
    const std::lock_guard lock{mutex};
    also = std::move(h);
  }
  std::ptrdiff_t count_on(std::thread::id thread) {
    const std::lock_guard lock{mutex};
    return std::count(threads.begin(), threads.end(), thread);
  }
  void end() {
    if (actor) post(actor, stop{});
    actor = nullptr;
    system.await_all_actors_done();
  }
};

}  // namespace

TEST_CASE("an actor that never blocks runs on the posting thread when the scope ends") {
  observed<quick> o;
  {
    const caller_runs scope;
    post(o.actor, end_step{step_id{1}});
    post(o.actor, end_step{step_id{2}});
    CHECK(o.count() == 0);
  }
  CHECK(o.steps == std::vector<std::uint64_t>{1, 2});
  CHECK(o.threads == std::vector<std::thread::id>(2, std::this_thread::get_id()));
}

TEST_CASE("any other actor runs on the scheduler, and so does every actor without a scope") {
  observed<patient> slow;
  {
    const caller_runs scope;
    post(slow.actor, end_step{step_id{1}});
  }
  slow.end();
  REQUIRE(slow.threads.size() == 1);
  CHECK(slow.threads[0] != std::this_thread::get_id());

  observed<quick> unscoped;
  post(unscoped.actor, end_step{step_id{1}});
  unscoped.end();
  REQUIRE(unscoped.threads.size() == 1);
  CHECK(unscoped.threads[0] != std::this_thread::get_id());
}

TEST_CASE("what an actor wakes runs after it, in the same scope, and an inner scope adds none") {
  observed<quick> second;
  observed<quick> first;
  // Actors of one system only are collected at a time; the other ones go to their scheduler.
  caf::actor chained = first.system.spawn<quick>([&](const end_step& m) {
    second.threads.push_back(std::this_thread::get_id());
    second.steps.push_back(m.step.value());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  first.pass_to([&](const end_step& m) {
    const caller_runs inner;
    post(chained, m);
  });
  {
    const caller_runs scope;
    post(first.actor, end_step{step_id{7}});
  }
  CHECK(first.steps == std::vector<std::uint64_t>{7});
  CHECK(second.steps == std::vector<std::uint64_t>{7});
  CHECK(second.threads == std::vector<std::thread::id>{std::this_thread::get_id()});
  post(chained, stop{});
}

TEST_CASE("a thread does not run actors for ever: the scheduler gets the rest") {
  observed<quick> o;
  std::atomic<std::uint64_t> handled{0};
  constexpr std::uint64_t many = 20'000;
  o.pass_to([&](const end_step& m) {
    if (handled.fetch_add(1) + 1 < many) post(o.actor, m);
  });
  {
    const caller_runs scope;
    post(o.actor, end_step{step_id{1}});
  }
  const auto here = o.count_on(std::this_thread::get_id());
  CHECK(here > 0);
  while (handled < many) std::this_thread::yield();
  o.end();
  CHECK(static_cast<std::uint64_t>(here) < many);
  CHECK(o.threads.size() == many);
}

TEST_CASE("a thread with a loop runs what it has collected since the last round") {
  observed<quick> o;
  std::thread looping{[&] {
    run_collected_actors();  // begins
    post(o.actor, end_step{step_id{1}});
    CHECK(o.count() == 0);
    run_collected_actors();
    CHECK(o.steps == std::vector<std::uint64_t>{1});
    CHECK(o.threads == std::vector<std::thread::id>{std::this_thread::get_id()});
    run_collected_actors();
    CHECK(o.count() == 1);
  }};
  looping.join();
}
