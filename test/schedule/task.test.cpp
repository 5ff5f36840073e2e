#include <type_traits>
#include <unordered_set>

#include <catch2/catch.hpp>

#include <rrfp/base/ids.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/stage_core.hpp>
#include <rrfp/core/task.hpp>

#include "../support/tasks.hpp"

namespace rrfp {
TEST_CASE("An identity converts implicitly neither from a number nor to another identity") {
  STATIC_REQUIRE(!std::is_convertible_v<std::uint32_t, stage_id>);
  STATIC_REQUIRE(!std::is_convertible_v<stage_id, std::uint32_t>);
  STATIC_REQUIRE(!std::is_constructible_v<stage_id, microbatch_id>);
  STATIC_REQUIRE(!std::is_assignable_v<chunk_id&, rank_id>);
  STATIC_REQUIRE(sizeof(stage_id) == sizeof(std::uint32_t));
}

TEST_CASE("Identities order, compare and hash like their numbers") {
  CHECK(stage_id{} == stage_id{0});
  CHECK(stage_id{1} < stage_id{2});
  CHECK(launch_seq{1ULL << 40}.value() == 1ULL << 40);
  const std::unordered_set<microbatch_id> set{microbatch_id{3}, microbatch_id{3}, microbatch_id{4}};
  CHECK(set.size() == 2);
}

TEST_CASE("A task's text names its kind, its microbatch and its chunk unless that is the first") {
  CHECK(to_string(testing::make_task(task_kind::forward, 3)) == "F3");
  CHECK(to_string(testing::make_task(task_kind::backward, 0, 1)) == "B0.1");
  CHECK(to_string(testing::make_task(task_kind::weight, 12, 2)) == "W12.2");
  CHECK(to_string(testing::make_task(task_kind::backward_weight, 7)) == "BW7");
}

TEST_CASE("Every task is restored from its text") {
  for (int kind = 0; kind < task_kinds; ++kind)
    for (const auto mb : {0U, 1U, 9U, 10U, 4096U, ~0U})
      for (const auto chunk : {0U, 1U, 11U, ~0U}) {
        const auto t = testing::make_task(static_cast<task_kind>(kind), mb, chunk);
        CHECK(task_of(to_string(t)) == t);
      }
}

TEST_CASE("Any other text is refused as a task") {
  for (const auto* text :
       {"",     "F",      "3",     "X3",  "FB3", "f3",  "F-1",         "F3.",
        "F3.x", "F3.1.2", "F3,1",  " F3", "F3 ", "F 3", "F4294967296", "F3.4294967296",
        "F03",  "F3.0",   "F3.01", "BW",  "WB3"})
    CHECK_FALSE(task_of(text).has_value());
}

TEST_CASE("is_backward() and has_weight() match the kinds") {
  CHECK(is_backward(task_kind::backward));
  CHECK(is_backward(task_kind::backward_weight));
  CHECK_FALSE(is_backward(task_kind::weight));
  CHECK_FALSE(is_backward(task_kind::forward));
  CHECK(has_weight(task_kind::weight));
  CHECK(has_weight(task_kind::backward_weight));
  CHECK_FALSE(has_weight(task_kind::backward));
  CHECK_FALSE(has_weight(task_kind::forward));
}

TEST_CASE("Names of kinds parse to their values") {
  for (const auto kind :
       {task_kind::forward, task_kind::backward, task_kind::weight, task_kind::backward_weight})
    CHECK(task_kind_of(name(kind)) == kind);
  CHECK_FALSE(task_kind_of("WB").has_value());
  CHECK_FALSE(task_kind_of("?").has_value());
}

TEST_CASE("Choices and wait causes have the names that logs and metrics use") {
  CHECK(name(choice::hint_head) == "hint_head");
  CHECK(name(choice::skipped_not_ready) == "skipped_not_ready");
  CHECK(name(choice::memory_bound) == "memory_bound");
  CHECK(name(choice::only_choice) == "only_choice");
  CHECK(name(wait_cause::input) == "input");
  CHECK(name(wait_cause::in_order) == "in_order");
  CHECK(name(wait_cause::memory) == "memory");
  CHECK(name(wait_cause::complete) == "complete");
}

}  // namespace rrfp
