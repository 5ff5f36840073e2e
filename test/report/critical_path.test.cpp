// The critical path is as long as the run, and each of its tasks waited for the one before it.
#include <catch2/catch.hpp>

#include <rrfp/report/critical_path.hpp>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

std::string text_of(const critical_path& p) {
  std::string text;
  for (const auto& t : p.tasks)
    text += fmt::format("{}{}@{}",
                        text.empty()                   ? ""
                        : t.why == predecessor::sender ? " > "
                                                       : " . ",
                        to_string(t.task->what), t.task->stage.value());
  return text;
}

}  // namespace

TEST_CASE("two stages: the path goes through both and adds up to the wall time") {
  const auto file = two_stages().read();
  const auto p = find_critical_path(all_steps(file.runs[0]));
  CHECK(text_of(p) == "F0@0 > F0@1 . BW0@1 . F1@1 . BW1@1 > BW1@0");
  REQUIRE(p.by_stage.size() == 2);
  CHECK(p.by_stage[0].compute_by_kind == std::array<nanoseconds, 4>{us(10), 0, 0, us(20)});
  CHECK(p.by_stage[1].compute_by_kind == std::array<nanoseconds, 4>{us(21), 0, 0, us(35)});
  CHECK(p.transfer == us(2 + 3));
  CHECK(p.launch_gap == us(1 + 1));
  CHECK(p.step_begin == us(2));
  CHECK(p.between_steps == 0);
  CHECK(p.length() == us(95));
}

TEST_CASE("a task waits for a slow message although the previous launch ended after the sender") {
  hand_made t;
  t.run("slow message", 2)
      .task(0, "F0", 0, 0, 10)
      .task(0, "F1", 10, 10, 20)
      .task(1, "F0", 12, 12, 30)
      .wait(1, "input", "F1", 30, 50)
      .task(1, "F1", 50, 50, 60);
  const auto file = t.read();
  const auto p = find_critical_path(all_steps(file.runs[0]));
  CHECK(text_of(p) == "F0@0 . F1@0 > F1@1");
  CHECK(p.transfer == us(30));
  CHECK(p.length() == us(60));
}

TEST_CASE("the path crosses steps, ranks and chunks") {
  SECTION("steps") {
    const auto file = hand_made{}
                          .run("steps", 1)
                          .task(0, "F0", 0, 0, 10, {.step = 0, .delay = 4})
                          .task(0, "F0", 15, 16, 20, {.step = 1})
                          .read();
    const auto p = find_critical_path(all_steps(file.runs[0]));
    CHECK(p.tasks.size() == 2);
    CHECK(p.by_stage[0].delay == us(4));
    CHECK(p.between_steps == us(5));
    CHECK(p.step_begin == us(1));
    CHECK(p.length() == us(20));
  }
  SECTION("a task that became shorter by an injected delay") {
    const auto file = hand_made{}
                          .run("shorter", 1)
                          .task(0, "F0", 0, 0, 10, {.seq = 0, .delay = 4})
                          .task(0, "F1", 10, 10, 20, {.seq = 1, .delay = -6})
                          .read();
    const auto all = all_steps(file.runs[0]);
    CHECK(find_critical_path(all).by_stage[0].delay == us(-2));
  }
  SECTION("ranks: the previous launch ended last on the other rank") {
    const auto file = hand_made{}
                          .run("ranks", 1)
                          .task(0, "F0", 0, 0, 10, {.rank = 0, .seq = 0})
                          .task(0, "F0", 0, 0, 14, {.rank = 1, .seq = 0})
                          .task(0, "BW0", 15, 15, 30, {.rank = 0, .seq = 1})
                          .task(0, "BW0", 15, 15, 29, {.rank = 1, .seq = 1})
                          .read();
    const auto p = find_critical_path(all_steps(file.runs[0]));
    REQUIRE(p.tasks.size() == 2);
    CHECK(p.tasks[0].task->rank == rank_id{1});
    CHECK(p.launch_gap == us(1));
  }
  SECTION("placement v: the last stage sends to itself") {
    const auto file = hand_made{}
                          .run("v", 2)
                          .task(0, "F0", 0, 0, 10)
                          .task(1, "F0", 10, 10, 20)
                          .task(1, "F0.1", 20, 20, 30)
                          .task(0, "F0.1", 30, 30, 40)
                          .read();
    CHECK(file.runs[0].shape.layout == placement::v);
    CHECK(text_of(find_critical_path(all_steps(file.runs[0]))) == "F0@0 > F0@1 . F0.1@1 > F0.1@0");
  }
  SECTION("placement interleaved: the last stage sends to the first") {
    const auto file = hand_made{}
                          .run("interleaved", 2)
                          .task(0, "F0", 0, 0, 10)
                          .task(1, "F0", 10, 10, 20)
                          .task(0, "F0.1", 20, 20, 30)
                          .task(1, "F0.1", 30, 30, 40)
                          .read();
    CHECK(file.runs[0].shape.layout == placement::interleaved);
    CHECK(text_of(find_critical_path(all_steps(file.runs[0]))) == "F0@0 > F0@1 > F0.1@0 > F0.1@1");
  }
}

TEST_CASE("a sender whose clock is ahead counts only until the receiver began") {
  const auto file =
      hand_made{}.run("clocks", 2).task(0, "F0", 0, 0, 25).task(1, "F0", 20, 20, 40).read();
  const auto p = find_critical_path(all_steps(file.runs[0]));
  CHECK(text_of(p) == "F0@0 > F0@1");
  CHECK(p.by_stage[0].compute() == us(20));
  CHECK(p.transfer == 0);
  CHECK(p.length() == us(40));
}

}  // namespace rrfp::report::testing
