/// Work on the thread of the program: which thread runs it, and when.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/device/caller_queue.hpp>

using namespace rrfp;
using namespace rrfp::actors;

namespace {

constexpr std::chrono::microseconds no_spin{0};
constexpr step_id first{0}, second{1};

}  // namespace

TEST_CASE("work of a step runs on the thread that waits for it, in order", "[caller_queue]") {
  caller_queue queue{no_spin};
  const auto device = queue.make_device();
  std::vector<int> done;
  std::atomic<bool> is_over = false;
  const auto here = std::this_thread::get_id();
  queue.want(first);
  std::thread actor{[&] {
    device->begin_step(first);
    for (int i = 0; i < 100; ++i)
      device->post([&, i] {
        CHECK(std::this_thread::get_id() == here);
        done.push_back(i);
      });
    device->occupy([] { return std::chrono::nanoseconds{1000}; },
                   [&](const occupancy&) { is_over = true; });
  }};
  queue.run_until([&] { return is_over.load(); }, {});
  actor.join();
  REQUIRE(done.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(done[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a step that nobody wants yet waits, and all that follows it", "[caller_queue]") {
  caller_queue queue{no_spin};
  const auto device = queue.make_device();
  int begun = 0;
  device->begin_step(second);
  device->post([&] { ++begun; });
  queue.want(first);
  int polls = 0;
  queue.run_until([&] { return ++polls > 3; }, [] {});
  CHECK(begun == 0);
  queue.want(second);
  queue.run_until([&] { return begun == 1; }, {});
  CHECK(begun == 1);
}

TEST_CASE("what comes between two steps runs on the thread that brings it", "[caller_queue]") {
  caller_queue queue{no_spin};
  const auto device = queue.make_device();
  std::vector<std::thread::id> threads;
  std::thread actor{[&] {
    device->post([&] {
      threads.push_back(std::this_thread::get_id());
      device->post([&] { threads.push_back(std::this_thread::get_id()); });
    });
  }};
  const auto expected = actor.get_id();
  actor.join();
  CHECK(threads == std::vector{expected, expected});

  SECTION("but not between want() and run_until()") {
    queue.want(first);
    device->begin_step(first);
    std::thread other{
        [&] { device->post([&] { threads.push_back(std::this_thread::get_id()); }); }};
    other.join();
    CHECK(threads.size() == 2);
    queue.run_until([&] { return threads.size() == 3; }, {});
    CHECK(threads.back() == std::this_thread::get_id());
  }
  SECTION("and a caller waits for its end") {
    std::atomic<bool> is_running = false, has_ended = false;
    std::thread other{[&] {
      device->post([&] {
        is_running = true;
        std::this_thread::sleep_for(std::chrono::milliseconds{50});
        has_ended = true;
      });
    }};
    while (!is_running) std::this_thread::yield();
    queue.run_until([] { return true; }, {});
    CHECK(has_ended);
    other.join();
  }
}

TEST_CASE("what look() throws leaves run_until(), and the queue goes on", "[caller_queue]") {
  caller_queue queue{no_spin};
  const auto device = queue.make_device();
  CHECK_THROWS_AS(queue.run_until([] { return false; }, [] { throw std::runtime_error("enough"); }),
                  std::runtime_error);
  bool has_run = false;
  device->post([&] { has_run = true; });
  CHECK(has_run);
}

TEST_CASE("a stopped device drops its work alone", "[caller_queue]") {
  caller_queue queue{no_spin};
  const auto stopped = queue.make_device(), other = queue.make_device();
  int runs = 0, lost = 0;
  queue.want(first);
  stopped->begin_step(first);
  stopped->post([&] { ++lost; });
  other->post([&] { ++runs; });
  stopped->stop();
  stopped->post([&] { ++lost; });
  queue.run_until([&] { return runs == 1; }, {});
  CHECK(lost == 0);
}
