#include <catch2/catch.hpp>

#include <future>

#include <rrfp/device/compute_thread.hpp>

using rrfp::actors::compute_thread;

TEST_CASE("work runs in the order in which it was posted, whether the thread sleeps or spins") {
  const std::chrono::microseconds spin{GENERATE(0, 50, 100'000)};
  std::vector<int> ran;
  std::promise<void> done;
  compute_thread thread{"test", spin};
  for (int i = 0; i < 100; ++i) thread.post([&ran, i] { ran.push_back(i); });
  thread.post([&] { done.set_value(); });
  done.get_future().wait();
  REQUIRE(ran.size() == 100);
  CHECK(std::is_sorted(ran.begin(), ran.end()));
}

TEST_CASE("stop ends a pause, drops queued work and accepts no more") {
  std::promise<void> begun;
  bool later = false;
  const std::chrono::microseconds spin{GENERATE(0, 100'000)};
  {
    compute_thread thread{"test", spin};
    thread.occupy(
        [&] {
          begun.set_value();
          return std::chrono::hours{1};
        },
        [&](const auto&) { later = true; });
    thread.post([&] { later = true; });
    begun.get_future().wait();
    thread.stop();
    thread.post([&] { later = true; });
  }
  CHECK_FALSE(later);
}

TEST_CASE("a pause lasts as long as the work returned") {
  std::promise<void> over;
  compute_thread thread{"test"};
  const auto begun = std::chrono::steady_clock::now();
  thread.occupy([] { return std::chrono::milliseconds{30}; },
                [&](const auto&) { over.set_value(); });
  over.get_future().wait();
  CHECK(std::chrono::steady_clock::now() - begun >= std::chrono::milliseconds{30});
}
