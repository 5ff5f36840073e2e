/// Disagreement, absence and abort end in an error on every rank, never in a hang.
#include <atomic>
#include <ctime>

#include <catch2/catch.hpp>

#include "groups.hpp"

namespace rrfp::tp_coord::test {

namespace {

using namespace std::chrono_literals;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

status reduce(collective& c, std::size_t count = 4) {
  std::vector<float> x(count, 1.0f);
  return c.all_reduce(operation::sum, x.data(), x.size(), element::float32);
}

}  // namespace

TEST_CASE("ranks in different tasks get an error with both tasks, at once") {
  for (const auto w : all_implementations) {
    for (const std::uint32_t odd : {0u, 1u, 2u}) {
      INFO(name(w) << ", rank " << odd << " is in another task");
      auto members = make_group(w, 3, 20s);
      const auto begin = std::chrono::steady_clock::now();
      const auto errors = run_all(members, [&](collective& c) {
        c.begin(c.rank().value() == odd ? site_of(5, task_kind::backward) : site_of(2));
        return reduce(c);
      });
      CHECK(seconds_since(begin) < 10);
      for (const auto& e : errors) {
        CHECK_THAT(e, Catch::Contains("number 0 of F2 (step 4, launch 7)") &&
                          Catch::Contains("number 0 of B5 (step 4, launch 7)") &&
                          Catch::Contains("rank 0 is in"));
      }
      // The group is unusable and returns the same error.
      for (const auto& e : run_all(members, [](collective& c) { return reduce(c); })) {
        CHECK_THAT(e, Catch::Contains("B5"));
      }
    }
  }
}

TEST_CASE(
    "different counts, different operations and an additional collective are disagreements too") {
  for (const auto w : all_implementations) {
    INFO(name(w));
    const auto disagree = [&](const std::function<status(collective&)>& work,
                              const std::string& one, const std::string& other) {
      auto members = make_group(w, 2, 20s);
      for (const auto& e : run_all(members, work)) {
        CHECK_THAT(e, Catch::Contains(one) && Catch::Contains(other));
      }
    };
    disagree([](collective& c) { return reduce(c, 4 + c.rank().value()); }, "of 4 float32",
             "of 5 float32");
    disagree(
        [](collective& c) {
          if (c.rank().value() == 0) return c.barrier();
          return reduce(c, 100'000);
        },
        "barrier", "all-reduce (sum) of 100000 float32");
    disagree(
        [](collective& c) -> status {
          c.begin(site_of(1));
          for (int i = 0; i < 2; ++i) {
            if (auto ok = reduce(c); !ok) return ok;
          }
          if (c.rank().value() == 0) c.begin(site_of(2));
          return reduce(c);
        },
        "number 0 of F2", "number 2 of F1");
  }
}

TEST_CASE("a rank that does not arrive is named within the limit") {
  for (const auto w : all_implementations) {
    INFO(name(w));
    auto members = make_group(w, 4, 300ms);
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = run_all(members, [](collective& c) -> status {
      c.begin(site_of(2));
      if (auto ok = reduce(c); !ok) return ok;
      if (c.rank().value() == 1 || c.rank().value() == 3) return success();
      return reduce(c);
    });
    CHECK(seconds_since(begin) >= 0.3);
    CHECK(seconds_since(begin) < 10);
    for (const auto r : {0u, 2u}) {
      CHECK_THAT(errors[r], Catch::Contains("waited 300 ms in all-reduce (sum) of 4 float32, "
                                            "number 1 of F2 (step 4, launch 7) for") &&
                                Catch::Contains("rank 1, rank 3"));
    }
    // A rank that arrives too late gets the same error.
    const auto late = reduce(*members[1]);
    REQUIRE(!late.ok());
    CHECK_THAT(late.message(), Catch::Contains("for rank 1, rank 3"));
  }
}

TEST_CASE("abort releases waiting ranks and those that arrive later") {
  for (const auto w : all_implementations) {
    INFO(name(w));
    auto members = make_group(w, 3, 60s);
    std::atomic<int> waiting = 0;
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = run_all(members, [&](collective& c) -> status {
      if (c.rank().value() == 2) {
        while (waiting < 2) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(20ms);
        c.abort("stage 3 was lost");
        return reduce(c);
      }
      ++waiting;
      return reduce(c);
    });
    CHECK(seconds_since(begin) < 10);
    for (const auto& e : errors) CHECK_THAT(e, Catch::Contains("stage 3 was lost"));
  }
}

TEST_CASE("abort at any moment neither hangs nor leaves a call half done") {
  for (const auto w : all_implementations) {
    INFO(name(w));
    for (int round = 0; round < 20; ++round) {
      auto members = make_group(w, 3, 60s);
      std::vector<std::string> errors;
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
        members[1]->abort("enough");
      });
      errors = run_all(members, [&](collective& c) -> status {
        for (;;) {
          std::vector<float> x(10'000, 1.0f);
          auto done = c.all_reduce(operation::sum, x.data(), x.size(), element::float32);
          if (!done) return done;
          if (x.front() != 3.0f || x.back() != 3.0f) return error{"wrong sum"};
        }
      });
      aborter.join();
      for (const auto& e : errors) CHECK_THAT(e, Catch::Contains("enough"));
    }
  }
}

TEST_CASE("with more ranks than cores, waiting ranks use no CPU time") {
  auto members = make_in_process_group(8, {60s});
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  run_all(members, [](collective& c) {
    if (c.rank().value() == 5) std::this_thread::sleep_for(500ms);
    return reduce(c);
  });
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const auto used = static_cast<double>(after.tv_sec - before.tv_sec) +
                    static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  CHECK(used < 0.2);
}

}  // namespace rrfp::tp_coord::test
