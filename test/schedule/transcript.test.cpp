#include <catch2/catch.hpp>

#include <rrfp/core/transcript.hpp>
#include "../support/parse_event.hpp"
#include "../support/tasks.hpp"

namespace rrfp {
TEST_CASE("Every event is restored from its line") {
  const std::pair<event, const char*> lines[] = {
      {step_began{step_id{0}, {}}, "step 0"},
      {step_began{step_id{3}, {100, 0, ~std::uint64_t{0}}}, "step 3 100 0 18446744073709551615"},
      {step_began{step_id{3}, {7, 8}, 4}, "step 3 pieces 4 7 8"},
      {step_began{step_id{3}, {}, 0, 0}, "step 3 microbatches 0"},
      {step_began{step_id{3}, {7, 8}, 4, 2}, "step 3 microbatches 2 pieces 4 7 8"},
      {input_arrived{task_kind::forward, microbatch_id{2}, chunk_id{1}, rank_id{0}},
       "arrived F2.1 rank 0"},
      {input_arrived{task_kind::backward, microbatch_id{2}, chunk_id{0}, rank_id{63}},
       "arrived B2 rank 63"},
      {task_finished{launch_seq{1ULL << 40}, rank_id{1}}, "finished 1099511627776 rank 1"},
      {step_began{step_id{3}, {5, 6}, 4}, "step 3 pieces 4 5 6"},
      {decide{}, "decide"},
      {abort{}, "abort"},
  };
  for (const auto& [e, line] : lines) {
    CHECK(to_line(e) == line);
    const auto parsed = testing::parse_event(line);
    REQUIRE(parsed.ok());
    CHECK(*parsed == e);
  }
}

TEST_CASE("Actions print the chosen task, the reason and the fold") {
  CHECK(to_line(launch{launch_seq{17},
                       testing::make_task(task_kind::backward_weight, 2),
                       {choice::skipped_not_ready, 3},
                       {microbatch_id{2}, 1}}) == "launch 17 BW2 skipped_not_ready 3 folds 2+1");
  CHECK(to_line(launch{launch_seq{3},
                       testing::make_task(task_kind::weight, 2),
                       {choice::hint_head, 0},
                       {microbatch_id{2}, 0},
                       {1, 4}}) == "launch 3 W2 piece 1/4 hint_head 0 folds 2+0");
  CHECK(to_line(wait{wait_cause::memory, testing::make_task(task_kind::forward, 5)}) ==
        "wait memory F5");
  CHECK(to_line(wait{wait_cause::complete, {}}) == "wait complete");
}

TEST_CASE("A line that is not an event is quoted in the error with what was expected") {
  const std::pair<const char*, const char*> lines[] = {
      {"", "expected an event, got ''"},
      {"   ", "expected an event, got '   '"},
      {"decides", "expected step, arrived, finished, decide or abort, got 'decides'"},
      {"decide now", "expected step, arrived, finished, decide or abort, got 'decide now'"},
      {"launch 1 F0", "expected step, arrived, finished, decide or abort, got 'launch 1 F0'"},
      {"step 1 microbatches 65537",
       "expected 'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]', got 'step 1 "
       "microbatches 65537'"},
      {"step",
       "expected 'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]', got 'step'"},
      {"step -1",
       "expected 'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]', got 'step -1'"},
      {"step 1 2x",
       "expected 'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]', got 'step 1 2x'"},
      {"step 1 pieces",
       "expected 'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]', got 'step 1 "
       "pieces'"},
      {"step 1 pieces 0",
       "expected 'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]', got"},
      {"step 18446744073709551616",
       "expected 'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]', got 'step 1844"},
      {"arrived F2", "expected 'arrived F|B MICROBATCH[.CHUNK] rank NUMBER', got 'arrived F2'"},
      {"arrived W2 rank 0", "expected 'arrived F|B MICROBATCH[.CHUNK] rank NUMBER', got"},
      {"arrived BW2 rank 0", "expected 'arrived F|B MICROBATCH[.CHUNK] rank NUMBER', got"},
      {"arrived F2 rank x", "expected 'arrived F|B MICROBATCH[.CHUNK] rank NUMBER', got"},
      {"arrived F2 rank 0 0", "expected 'arrived F|B MICROBATCH[.CHUNK] rank NUMBER', got"},
      {"finished 1", "expected 'finished NUMBER rank NUMBER', got 'finished 1'"},
      {"finished F1 rank 0", "expected 'finished NUMBER rank NUMBER', got 'finished F1 rank 0'"},
      {"finished 1 on 0", "expected 'finished NUMBER rank NUMBER', got 'finished 1 on 0'"},
  };
  for (const auto& [line, wanted] : lines) {
    const auto parsed = testing::parse_event(line);
    REQUIRE_FALSE(parsed.ok());
    CHECK_THAT(parsed.message(), Catch::StartsWith(wanted));
  }
}

}  // namespace rrfp
