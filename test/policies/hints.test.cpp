/// Every policy in ready mode in virtual time, where a schedule is a hint.
#include <algorithm>

#include <catch2/catch.hpp>

#include "virtual_run.hpp"

using namespace rrfp;
using namespace rrfp::policies::testing;

namespace {

const std::vector<durations> times = {{1, 1, 1}, {2, 3, 1}, {3, 2, 2}, {1, 2, 1},
                                      {4, 5, 3}, {1, 3, 2}, {5, 1, 2}};

std::string text_of_case(const schedule_case& c) {
  return std::string{c.name} + ", p " + std::to_string(c.shape.stages) + ", v " +
         std::to_string(c.shape.chunks) + ", m " + std::to_string(c.shape.microbatches);
}

std::size_t tasks_done(const simulate::report& report) {
  std::size_t tasks = 0;
  for (const auto& stage : report.stages) tasks += stage.order.size();
  return tasks;
}

std::size_t tasks_of(const std::vector<sequence>& sequences) {
  std::size_t tasks = 0;
  for (const auto& order : sequences) tasks += order.size();
  return tasks;
}

}  // namespace

TEST_CASE("every schedule ends as a hint, even with a single slot") {
  for (const auto& c : accepted_cases(5, 3, 11)) {
    INFO(text_of_case(c));
    const auto tasks = tasks_of(sequences_of(c.name, c.shape));
    for (std::uint32_t slots = 0; slots <= 2; ++slots) {
      const memory_limit limit{slots, 0, 0};
      const auto report = run(c.name, c.shape, {2, 3, 1}, dispatch_mode::ready, limit);
      CHECK(tasks_done(report) == tasks);
      for (const auto& stage : report.stages)
        if (slots != 0) CHECK(stage.memory.slots_peak <= slots);
    }
  }
}

TEST_CASE("schedules with fused backward neither lose nor gain as hints when nothing varies") {
  for (const auto& c : accepted_cases(6, 3, 13)) {
    if (c.name != "gpipe" && c.name != "one_f_one_b" && c.name != "interleaved_1f1b") continue;
    for (const auto& t : times) {
      INFO(text_of_case(c) << ", " << text_of(t));
      CHECK(run(c.name, c.shape, t, dispatch_mode::ready).makespan ==
            run(c.name, c.shape, t, dispatch_mode::in_order).makespan);
    }
  }
}

TEST_CASE(
    "as a hint, a schedule loses at most one filler task per stage boundary when nothing varies") {
  // A gap of the sequence is filled with a W or an early F, and an input that arrives meanwhile
  // waits for its end: less than that task's time, passed on from stage to stage. The sequence,
  // made for exactly these durations, would have stayed idle for it.
  for (const auto& c : accepted_cases(6, 1, 13)) {
    for (const auto& t : times) {
      const auto ready = run(c.name, c.shape, t, dispatch_mode::ready).makespan;
      const auto in_order = run(c.name, c.shape, t, dispatch_mode::in_order).makespan;
      INFO(text_of_case(c) << ", " << text_of(t));
      CHECK(ready - in_order <= (c.shape.stages - 1) * std::max(t.forward, t.weight));
    }
  }
}

TEST_CASE("a schedule that leaves gaps at these durations gains as a hint") {
  const durations uneven{1, 3, 2};
  CHECK(run("zb_v", folded(3, 5), uneven, dispatch_mode::in_order).makespan == 66);
  CHECK(run("zb_v", folded(3, 5), uneven, dispatch_mode::ready).makespan == 62);
}

TEST_CASE("the policies that work in rounds end for every shape, with and without a limit") {
  for (const auto* name : {"bf", "bfw", "fb", "f_priority", "b_priority"}) {
    for (std::uint32_t p = 1; p <= 5; ++p) {
      for (std::uint32_t m = 1; m <= 9; ++m) {
        for (const auto& shape :
             {linear(p, m), interleaved(p, 2, m), interleaved(p, 3, m), folded(p, m)}) {
          for (std::uint32_t slots = 0; slots <= 2; ++slots) {
            const auto report =
                run(name, shape, {2, 3, 1}, dispatch_mode::ready, memory_limit{slots, 0, 0});
            // BFW runs B and W separately.
            const auto kinds = std::string_view{name} == "bfw" ? 3U : 2U;
            CHECK(tasks_done(report) == std::size_t{kinds} * p * m * shape.chunks);
          }
        }
      }
    }
  }
}

TEST_CASE("BF and FB reach 1F1B's time when nothing varies") {
  for (const auto* name : {"bf", "fb"}) {
    for (std::uint32_t p = 1; p <= 6; ++p) {
      for (std::uint32_t m = 1; m <= 13; ++m) {
        INFO(name << ", p " << p << ", m " << m);
        CHECK(run(name, linear(p, m), {1, 1, 1}, dispatch_mode::ready).makespan == (m + p - 1) * 3);
      }
    }
  }
}
