#include <future>
#include <thread>

#include <catch2/catch.hpp>

#include <rrfp/accelerator/event_poller.hpp>

#include "eventually.hpp"
#include "fake_platform.hpp"

namespace rrfp::accelerator {

namespace {

using namespace std::chrono_literals;
using rrfp::test::eventually;
using test::fake_event;

/// A pool that records the events it made.
struct known_events {
  std::vector<std::shared_ptr<fake_event::state>> made;
  std::shared_ptr<event_pool> pool = event_pool::make([this]() -> result<std::unique_ptr<event>> {
    auto e = std::make_unique<fake_event>();
    made.push_back(e->seen);
    return std::unique_ptr<event>{std::move(e)};
  });
};

}  // namespace

TEST_CASE("a released event is reused") {
  known_events known;
  {
    const auto a = known.pool->take().value();
    const auto b = known.pool->take().value();
    CHECK(known.made.size() == 2);
    CHECK(known.pool->unused() == 0);
  }
  CHECK(known.pool->unused() == 2);
  const auto c = known.pool->take().value();
  CHECK(known.made.size() == 2);
}

TEST_CASE("a pool returns the error of the event factory") {
  const auto pool = event_pool::make(
      []() -> result<std::unique_ptr<event>> { return error{"fakeEventCreate on device 1: no"}; });
  CHECK(pool->take().message() == "fakeEventCreate on device 1: no");
}

TEST_CASE("the events of a queue complete in order") {
  known_events known;
  event_poller poller{GENERATE(0us, 1000us)};
  const auto queue = poller.open_queue();
  std::mutex mutex;
  std::vector<int> done;
  for (int i = 0; i < 3; ++i)
    poller.watch(queue, known.pool->take().value(), [&, i](const status& s) {
      const std::lock_guard lock{mutex};
      if (s.ok()) done.push_back(i);
    });
  // The last event is done first, as no real stream would do: it must wait for its turn.
  known.made[2]->done = true;
  known.made[1]->done = true;
  std::this_thread::sleep_for(5ms);
  {
    const std::lock_guard lock{mutex};
    CHECK(done.empty());
    CHECK(known.made[2]->queries == 0);
  }
  known.made[0]->done = true;
  CHECK(eventually([&] {
    const std::lock_guard lock{mutex};
    return done == std::vector<int>{0, 1, 2};
  }));
  CHECK(eventually([&] { return known.pool->unused() == 3; }));
}

TEST_CASE("a waiting queue does not block the others") {
  known_events known;
  event_poller poller{50us};
  const auto slow = poller.open_queue();
  const auto quick = poller.open_queue();
  std::promise<void> done;
  std::atomic<bool> too_early = false;
  poller.watch(slow, known.pool->take().value(), [&](const status&) { too_early = true; });
  poller.watch(quick, known.pool->take().value(), [&](const status&) { done.set_value(); });
  known.made[1]->done = true;
  CHECK(done.get_future().wait_for(5s) == std::future_status::ready);
  poller.close_queue(slow);
  CHECK_FALSE(too_early);
}

TEST_CASE("an event that cannot be queried ends with the error") {
  known_events known;
  event_poller poller{50us};
  const auto queue = poller.open_queue();
  std::promise<std::string> why;
  poller.watch(queue, known.pool->take().value(),
               [&](const status& s) { why.set_value(s.message()); });
  known.made[0]->broken = true;
  CHECK(why.get_future().get() == "fakeEventQuery on device 0: broken");
}

TEST_CASE("no callback of a closed queue runs") {
  known_events known;
  event_poller poller{50us};
  const auto queue = poller.open_queue();
  std::atomic<bool> called = false;
  std::promise<void> began;
  std::promise<void> may_end;
  poller.watch(queue, known.pool->take().value(), [&](const status&) {
    began.set_value();
    may_end.get_future().wait();
  });
  poller.watch(queue, known.pool->take().value(), [&](const status&) { called = true; });
  known.made[0]->done = true;
  began.get_future().wait();
  std::atomic<bool> closed = false;
  std::thread closing{[&] {
    poller.close_queue(queue);
    closed = true;
  }};
  std::this_thread::sleep_for(10ms);
  CHECK_FALSE(closed);  // it waits for the running callback
  known.made[1]->done = true;
  may_end.set_value();
  closing.join();
  poller.watch(queue, known.pool->take().value(), [&](const status&) { called = true; });
  std::this_thread::sleep_for(5ms);
  CHECK_FALSE(called);
}

TEST_CASE("an idle poller queries nothing, and a poller can be destroyed with pending events") {
  known_events known;
  {
    event_poller poller{0us};
    poller.watch(poller.open_queue(), known.pool->take().value(), [](const status&) {});
    CHECK(eventually([&] { return known.made[0]->queries > 2; }));
  }
  const auto asked = known.made[0]->queries.load();
  std::this_thread::sleep_for(2ms);
  CHECK(known.made[0]->queries == asked);
}

}  // namespace rrfp::accelerator
