/// The rules of a stage one by one, as transcripts: events unindented, actions indented.
#include <catch2/catch.hpp>

#include <rrfp/core/sequence.hpp>
#include <rrfp/core/stage_core.hpp>
#include <rrfp/core/stage_snapshot.hpp>

#include "death.hpp"
#include "test_policies.hpp"
#include "transcript_check.hpp"

namespace rrfp {
namespace {

using testing::abort_message;
using testing::hint_table;
using testing::replayed;

/// The first of two stages with `m` microbatches: its gradients come from the next stage.
stage_config first_of_two(std::uint32_t m) {
  stage_config config;
  config.shape = {2, 1, m, placement::linear};
  return config;
}

/// The last of two stages: it produces its own gradients.
stage_config last_of_two(std::uint32_t m) {
  auto config = first_of_two(m);
  config.stage = stage_id{1};
  return config;
}

policy_factory obeying(std::initializer_list<std::string_view> texts) {
  sequence order;
  for (const auto text : texts) order.push_back(task_of(text).value());
  return [order](const pipeline_shape&, stage_id) { return make_sequence_policy("test", order); };
}

policy_factory table(const hint_table& hint) {
  return [hint = std::make_shared<hint_table>(hint)](const pipeline_shape&, stage_id) {
    return std::make_unique<testing::table_policy>(hint);
  };
}

/// The oldest microbatch first, F before B before W, all in one lane.
policy_factory oldest_first(const pipeline_shape& shape, bool fused) {
  hint_table hint{shape, fused};
  return table(
      hint.assign([](const task&) { return 0U; },
                  [](const task& t) { return t.mb.value() * 3 + testing::row_of(t.kind); }));
}

}  // namespace

// ---- readiness

TEST_CASE(
    "F is ready when its activation has arrived, B when its F has run and its gradient has "
    "arrived") {
  const auto config = first_of_two(1);
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
decide
  wait input F0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
finished 0 rank 0
decide
  wait input BW0
arrived B0 rank 0
decide
  launch 1 BW0 only_choice 0 folds 0+1
finished 1 rank 0
decide
  wait complete
)";
  CHECK(replayed(core, text) == text);
  CHECK(core.step_complete());
}

TEST_CASE("An F without a slot runs early while nothing else can, and again once it has one") {
  auto config = first_of_two(3);
  config.limit.slots = 1;
  config.early_forwards = 1;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
arrived F2 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
decide
finished 0 rank 0
decide
  launch 1 F1 early memory_bound 1 folds 1+0
arrived B0 rank 0
arrived B1 rank 0
finished 1 rank 0
decide
  launch 2 BW0 hint_head 0 folds 0+1
finished 2 rank 0
decide
  launch 3 F1 again hint_head 0 folds 1+0
finished 3 rank 0
decide
  launch 4 BW1 hint_head 0 folds 1+1
finished 4 rank 0
decide
  launch 5 F2 only_choice 0 folds 2+0
finished 5 rank 0
decide
  wait input BW2
arrived B2 rank 0
decide
  launch 6 BW2 only_choice 0 folds 2+1
finished 6 rank 0
decide
  wait complete
)";
  CHECK(replayed(core, text) == text);
  CHECK(core.step_complete());
}

TEST_CASE("Early forwards are limited in number, and none runs on the last virtual stage") {
  auto config = first_of_two(3);
  config.limit.slots = 1;
  config.early_forwards = 1;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto first = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
arrived F2 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 early memory_bound 1 folds 1+0
finished 1 rank 0
decide
  wait memory F1
)";
  CHECK(replayed(core, first) == first);
  const auto state = core.snapshot();
  CHECK_FALSE(state.is_done(task_of("F1").value()));
  CHECK(state.has_sent_output_of(task_of("F1").value()));

  stage_config folded;
  folded.shape = {2, 2, 2, placement::v};
  folded.limit.slots = 1;
  folded.early_forwards = 2;
  stage_core first_and_last{folded, oldest_first(folded.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 early only_choice 3 folds 1+0
finished 1 rank 0
arrived F1.1 rank 0
decide
  wait memory F1
)";
  CHECK(replayed(first_and_last, text) == text);
}

TEST_CASE("The last virtual stage needs no gradient from another stage") {
  const auto config = last_of_two(1);
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
finished 0 rank 0
decide
  launch 1 BW0 only_choice 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE(
    "In placement V, the first stage holds the last virtual stage, and each chunk waits for its "
    "own inputs") {
  stage_config config;
  config.shape = {2, 2, 1, placement::v};
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
finished 0 rank 0
decide
  wait input F0.1
arrived F0.1 rank 0
decide
  launch 1 F0.1 only_choice 0 folds 0+0
finished 1 rank 0
decide
  launch 2 BW0.1 only_choice 1 folds 0+1
finished 2 rank 0
decide
  wait input BW0
arrived B0 rank 0
decide
  launch 3 BW0 only_choice 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("An input from another chunk of the same stage arrives as an event, too") {
  stage_config config;
  config.shape = {1, 2, 1, placement::interleaved};
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
finished 0 rank 0
decide
  wait input F0.1
arrived F0.1 rank 0
decide
  launch 1 F0.1 only_choice 0 folds 0+0
finished 1 rank 0
decide
  launch 2 BW0.1 only_choice 1 folds 0+1
finished 2 rank 0
decide
  wait input BW0
arrived B0 rank 0
decide
  launch 3 BW0 only_choice 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("W is ready as soon as its B is launched") {
  const auto config = last_of_two(1);
  stage_core core{config, oldest_first(config.shape, false)};
  const auto text = R"(
step 0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
finished 0 rank 0
decide
  launch 1 B0 only_choice 0 folds 0+0
finished 1 rank 0
decide
  launch 2 W0 only_choice 0 folds 0+1
finished 2 rank 0
decide
  wait complete
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("A task is ready only when its input is on every rank of the stage") {
  auto config = first_of_two(2);
  config.ranks = 3;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 2
arrived F0 rank 0
arrived F1 rank 1
decide
  wait ranks F0
arrived F0 rank 1
decide
  launch 0 F0 only_choice 0 folds 0+0
arrived B0 rank 1
arrived B0 rank 0
finished 0 rank 1
finished 0 rank 0
decide
finished 0 rank 2
decide
  wait ranks BW0
arrived B0 rank 2
decide
  launch 1 BW0 only_choice 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("A gradient that arrives before its F has run is kept, on each rank") {
  auto config = first_of_two(1);
  config.ranks = 2;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived B0 rank 0
arrived F0 rank 0
arrived F0 rank 1
decide
  launch 0 F0 only_choice 0 folds 0+0
finished 0 rank 0
finished 0 rank 1
decide
  wait ranks BW0
arrived B0 rank 1
decide
  launch 1 BW0 only_choice 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("64 ranks, the maximum, are counted") {
  auto config = last_of_two(1);
  config.ranks = 64;
  stage_core core{config, oldest_first(config.shape, true)};
  core.on(step_began{});
  for (std::uint32_t r = 0; r < 64; ++r) {
    CHECK(core.ready() == 0);
    core.on(input_arrived{task_kind::forward, microbatch_id{0}, chunk_id{0}, rank_id{r}});
  }
  CHECK(core.ready() == 1);
  CHECK(core.on(decide{}).size() == 1);
  for (std::uint32_t r = 0; r < 64; ++r) {
    CHECK(core.outstanding() == 1);
    core.on(task_finished{launch_seq{0}, rank_id{63 - r}});
  }
  CHECK(core.outstanding() == 0);
}

// ---- choice and reason

TEST_CASE(
    "The reason says whether the head of the hint ran, or how many tasks before the chosen one "
    "were not ready") {
  const auto config = first_of_two(4);
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F2 rank 0
arrived F3 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F2 skipped_not_ready 3 folds 2+0
finished 1 rank 0
decide
  launch 2 F3 only_choice 4 folds 3+0
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("The reason says when memory blocked a task that the hint ranks before") {
  auto config = first_of_two(3);
  config.limit.slots = 2;
  stage_core core{config, obeying({"F0", "F1", "F2", "BW0", "BW1", "BW2"})};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
arrived F2 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
arrived B0 rank 0
decide
  launch 1 F1 hint_head 0 folds 1+0
finished 1 rank 0
decide
  launch 2 BW0 memory_bound 1 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("Memory is also the reason if it blocked a whole lane that the policy tries first") {
  auto config = first_of_two(2);
  config.limit.slots = 1;
  stage_core core{config, table(testing::kind_first_hint(config.shape, true, task_kind::forward))};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
arrived B0 rank 0
decide
  launch 1 BW0 memory_bound 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("BF alternates backward and forward while both are ready") {
  const auto config = last_of_two(3);
  stage_core core{config, table(testing::bf_hint(config.shape, true))};
  const auto text = R"(
step 0
arrived F1 rank 0
decide
  launch 0 F1 only_choice 1 folds 1+0
arrived F0 rank 0
arrived F2 rank 0
finished 0 rank 0
decide
  launch 1 BW1 skipped_not_ready 1 folds 1+0
finished 1 rank 0
decide
  launch 2 F0 hint_head 0 folds 0+0
finished 2 rank 0
decide
  launch 3 BW0 hint_head 0 folds 0+2
finished 3 rank 0
decide
  launch 4 F2 only_choice 0 folds 2+0
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("Equal ranks go to the smaller microbatch, then to the smaller chunk") {
  stage_config config;
  config.shape = {1, 2, 2, placement::interleaved};
  config.lookahead = 9;
  stage_core core{config, table(hint_table{config.shape})};
  const auto text = R"(
step 0
arrived F1 rank 0
arrived F0.1 rank 0
arrived F1.1 rank 0
arrived F0 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
  launch 1 F0.1 skipped_not_ready 1 folds 0+0
  launch 2 BW0.1 skipped_not_ready 1 folds 0+1
  launch 3 F1 skipped_not_ready 1 folds 1+0
  launch 4 F1.1 only_choice 2 folds 1+0
  launch 5 BW1.1 only_choice 2 folds 1+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("Forwards in order wait for the older microbatches of their chunk") {
  auto config = first_of_two(3);
  config.stage = stage_id{1};
  config.forwards_in_order = true;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F1 rank 0
arrived F2 rank 0
decide
  wait input F0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
finished 0 rank 0
decide
  launch 1 BW0 hint_head 0 folds 0+1
finished 1 rank 0
decide
  launch 2 F1 only_choice 0 folds 1+0
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("A lane that the policy leaves out is tried after the named lanes") {
  const auto config = first_of_two(1);
  hint_table hint{config.shape};
  hint.lanes = 3;
  hint.rule = testing::lane_rule::alternate;  // names only lanes 0 and 1
  stage_core core{
      config, table(hint.assign([](const task&) { return 2U; }, [](const task&) { return 0U; }))};
  const auto text = R"(
step 0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
)";
  CHECK(replayed(core, text) == text);
}

// ---- waiting

TEST_CASE("A waiting stage reports the cause: input, memory, or a complete step") {
  auto config = first_of_two(2);
  config.limit.slots = 1;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
decide
  wait input F0
arrived F1 rank 0
decide
  wait memory F1
arrived F0 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
decide
finished 0 rank 0
decide
  wait memory F1
arrived B0 rank 0
decide
  launch 1 BW0 hint_head 0 folds 0+1
finished 1 rank 0
decide
  launch 2 F1 only_choice 0 folds 1+0
finished 2 rank 0
arrived B1 rank 0
decide
  launch 3 BW1 only_choice 0 folds 1+1
decide
finished 3 rank 0
decide
  wait complete
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("At the limit of run_ahead a stage with one chunk runs no forward") {
  auto config = first_of_two(3);
  config.limit.run_ahead = 1;
  stage_core core{config, obeying({"F2", "F1", "F0", "BW0", "BW1", "BW2"})};
  const auto text = R"(
step 0
arrived F1 rank 0
decide
  launch 0 F1 only_choice 1 folds 1+0
finished 0 rank 0
arrived F2 rank 0
decide
  wait memory F2
arrived F0 rank 0
decide
  wait memory F2
arrived B1 rank 0
decide
  launch 1 BW1 memory_bound 3 folds 1+0
finished 1 rank 0
decide
  launch 2 F2 hint_head 0 folds 2+0
finished 2 rank 0
decide
  wait memory F0
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("With several chunks, only the oldest microbatch goes on at the limit of run_ahead") {
  stage_config config;
  config.shape = {2, 2, 3, placement::interleaved};
  config.limit.run_ahead = 2;
  stage_core core{
      config, table(hint_table{config.shape, true}.assign(
                  [](const task&) { return 0U; }, [](const task& t) { return 9 - t.mb.value(); }))};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
arrived F2 rank 0
decide
  launch 0 F2 hint_head 0 folds 2+0
finished 0 rank 0
arrived F2.1 rank 0
decide
  launch 1 F2.1 skipped_not_ready 1 folds 2+0
finished 1 rank 0
arrived B2.1 rank 0
decide
  launch 2 F0 memory_bound 6 folds 0+0
finished 2 rank 0
decide
  wait memory BW2.1
arrived F0.1 rank 0
decide
  launch 3 F0.1 memory_bound 7 folds 0+0
finished 3 rank 0
arrived B0.1 rank 0
decide
  launch 4 BW0.1 memory_bound 7 folds 0+1
finished 4 rank 0
decide
  wait memory BW2.1
arrived B0 rank 0
decide
  launch 5 BW0 memory_bound 6 folds 0+1
finished 5 rank 0
decide
  launch 6 F1 memory_bound 2 folds 1+0
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE(
    "Under a byte limit, the oldest microbatch is admitted when the hint's first does not fit") {
  auto config = first_of_two(3);
  config.limit.bytes = 10;
  stage_core core{config, obeying({"F2", "F1", "F0", "BW0", "BW1", "BW2"})};
  const auto text = R"(
step 0 6 3 9
arrived F2 rank 0
arrived F1 rank 0
decide
  wait memory F2
arrived F0 rank 0
decide
  launch 0 F0 memory_bound 2 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 memory_bound 1 folds 1+0
)";
  CHECK(replayed(core, text) == text);
}

// ---- lookahead

TEST_CASE("Lookahead is the number of launches queued behind the running one") {
  for (std::uint32_t lookahead = 0; lookahead <= 3; ++lookahead) {
    auto config = last_of_two(4);
    config.lookahead = lookahead;
    stage_core core{config, oldest_first(config.shape, true)};
    core.on(step_began{});
    for (std::uint32_t i = 0; i < 4; ++i)
      core.on(input_arrived{task_kind::forward, microbatch_id{i}, chunk_id{0}, rank_id{0}});
    CHECK(core.on(decide{}).size() == lookahead + 1);
    CHECK(core.outstanding() == lookahead + 1);
    CHECK(core.on(decide{}).empty());
    core.on(task_finished{launch_seq{0}, rank_id{0}});
    CHECK(core.on(decide{}).size() == 1);
  }
}

TEST_CASE("A launch may be queued behind the launch whose result it needs") {
  auto config = last_of_two(2);
  config.lookahead = 3;
  stage_core core{config, oldest_first(config.shape, false)};
  const auto text = R"(
step 0
arrived F0 rank 0
decide
  launch 0 F0 only_choice 0 folds 0+0
  launch 1 B0 only_choice 0 folds 0+0
  launch 2 W0 only_choice 0 folds 0+1
finished 0 rank 0
decide
finished 1 rank 0
finished 2 rank 0
decide
  wait input F1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("A queued fold frees its slot when it ends, not when it is launched") {
  auto config = last_of_two(2);
  config.lookahead = 3;
  config.limit.slots = 1;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
  launch 1 BW0 hint_head 0 folds 0+1
finished 0 rank 0
decide
finished 1 rank 0
decide
  launch 2 F1 only_choice 0 folds 1+0
  launch 3 BW1 only_choice 0 folds 1+1
)";
  CHECK(replayed(core, text) == text);
}

// ---- folds and slots

TEST_CASE("An early fused backward folds nothing; the one that closes the gap folds both") {
  const auto config = first_of_two(4);
  stage_core core{config, obeying({"F0", "F1", "F2", "F3", "BW0", "BW1", "BW2", "BW3"})};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
arrived F2 rank 0
arrived F3 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 hint_head 0 folds 1+0
finished 1 rank 0
decide
  launch 2 F2 hint_head 0 folds 2+0
finished 2 rank 0
decide
  launch 3 F3 only_choice 0 folds 3+0
finished 3 rank 0
arrived B1 rank 0
decide
  launch 4 BW1 only_choice 1 folds 1+0
finished 4 rank 0
arrived B3 rank 0
decide
  launch 5 BW3 only_choice 2 folds 3+0
finished 5 rank 0
arrived B0 rank 0
decide
  launch 6 BW0 only_choice 0 folds 0+2
finished 6 rank 0
arrived B2 rank 0
decide
  launch 7 BW2 only_choice 0 folds 2+2
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("In ready mode W waits for its turn") {
  const auto config = first_of_two(2);
  stage_core core{config, obeying({"F0", "F1", "B1", "W1", "B0", "W0"})};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 only_choice 0 folds 1+0
finished 1 rank 0
arrived B1 rank 0
decide
  launch 2 B1 only_choice 0 folds 1+0
finished 2 rank 0
decide
  wait input B0
arrived B0 rank 0
decide
  launch 3 B0 only_choice 1 folds 0+0
finished 3 rank 0
decide
  launch 4 W0 only_choice 1 folds 0+1
finished 4 rank 0
decide
  launch 5 W1 only_choice 0 folds 1+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("A fused backward that closes the gap makes the W of the next split one ready") {
  const auto config = first_of_two(3);
  stage_core core{config, obeying({"F0", "F1", "F2", "BW0", "B1", "W1", "BW2"})};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
arrived F2 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 hint_head 0 folds 1+0
finished 1 rank 0
decide
  launch 2 F2 only_choice 0 folds 2+0
finished 2 rank 0
arrived B2 rank 0
arrived B1 rank 0
decide
  launch 3 B1 skipped_not_ready 1 folds 1+0
finished 3 rank 0
decide
  launch 4 BW2 only_choice 2 folds 2+0
finished 4 rank 0
arrived B0 rank 0
decide
  launch 5 BW0 only_choice 0 folds 0+1
finished 5 rank 0
decide
  launch 6 W1 only_choice 0 folds 1+2
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("In-order mode may run W early; its fold waits") {
  auto config = first_of_two(2);
  config.mode = dispatch_mode::in_order;
  stage_core core{config, obeying({"F0", "F1", "B1", "W1", "B0", "W0"})};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
arrived B0 rank 0
arrived B1 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 hint_head 0 folds 1+0
finished 1 rank 0
decide
  launch 2 B1 hint_head 0 folds 1+0
finished 2 rank 0
decide
  launch 3 W1 hint_head 0 folds 1+0
finished 3 rank 0
decide
  launch 4 B0 only_choice 0 folds 0+0
finished 4 rank 0
decide
  launch 5 W0 only_choice 0 folds 0+2
)";
  CHECK(replayed(core, text) == text);
  CHECK(core.memory().slots == 2);
  core.on(task_finished{launch_seq{5}, rank_id{0}});
  CHECK(core.memory().slots == 0);
}

TEST_CASE("Folds of different chunks do not wait for each other") {
  stage_config config;
  config.shape = {1, 2, 2, placement::interleaved};
  stage_core core{config, obeying({"F0", "F0.1", "BW0.1", "F1", "F1.1", "BW1.1", "BW1", "BW0"})};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F0.1 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F0.1 only_choice 0 folds 0+0
finished 1 rank 0
decide
  launch 2 BW0.1 only_choice 0 folds 0+1
finished 2 rank 0
arrived F1 rank 0
arrived F1.1 rank 0
decide
  launch 3 F1 hint_head 0 folds 1+0
finished 3 rank 0
decide
  launch 4 F1.1 only_choice 0 folds 1+0
finished 4 rank 0
decide
  launch 5 BW1.1 only_choice 0 folds 1+1
finished 5 rank 0
arrived B1 rank 0
decide
  launch 6 BW1 only_choice 0 folds 1+0
finished 6 rank 0
arrived B0 rank 0
decide
  launch 7 BW0 only_choice 0 folds 0+2
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("Memory in use counts pending W, on every rank, until the fold ends") {
  auto config = last_of_two(1);
  config.ranks = 2;
  stage_core core{config, oldest_first(config.shape, false)};
  replayed(core, "step 0 50\narrived F0 rank 0\narrived F0 rank 1\n");
  CHECK(core.memory() == memory_use{});
  core.on(decide{});
  CHECK(core.memory() == memory_use{1, 1, 50, 50, 1, 1});
  replayed(core,
           "finished 0 rank 0\nfinished 0 rank 1\ndecide\nfinished 1 rank 0\nfinished 1 rank 1\n");
  CHECK(core.memory() == memory_use{1, 1, 50, 50, 1, 1});
  replayed(core, "decide\nfinished 2 rank 1\n");
  CHECK(core.memory() == memory_use{1, 1, 50, 50, 1, 1});
  replayed(core, "finished 2 rank 0\n");
  CHECK(core.memory() == memory_use{0, 1, 0, 50, 0, 1});
}

// ---- in-order mode

TEST_CASE("In-order mode waits for the next task of the sequence while others are ready") {
  auto config = first_of_two(2);
  config.mode = dispatch_mode::in_order;
  stage_core core{config, obeying({"F0", "F1", "BW0", "BW1"})};
  const auto text = R"(
step 0
decide
  wait input F0
arrived F1 rank 0
decide
  wait in_order F0
arrived F0 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
finished 0 rank 0
decide
  launch 1 F1 only_choice 0 folds 1+0
finished 1 rank 0
arrived B1 rank 0
decide
  wait in_order BW0
arrived B0 rank 0
decide
  launch 2 BW0 hint_head 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("In-order mode waits for memory at the head of the sequence") {
  auto config = first_of_two(2);
  config.mode = dispatch_mode::in_order;
  config.limit.slots = 1;
  stage_core core{config, obeying({"F1", "BW1", "F0", "BW0"})};
  const auto text = R"(
step 0
arrived F1 rank 0
decide
  launch 0 F1 only_choice 0 folds 1+0
finished 0 rank 0
arrived B1 rank 0
decide
  launch 1 BW1 only_choice 0 folds 1+0
finished 1 rank 0
arrived F0 rank 0
decide
  wait memory F0
)";
  CHECK(replayed(core, text) == text);
}

// ---- steps

TEST_CASE("Launch numbers continue across steps, and every step runs all tasks again") {
  const auto config = last_of_two(1);
  stage_core core{config, oldest_first(config.shape, true)};
  for (std::uint64_t step = 0; step < 3; ++step) {
    core.on(step_began{step_id{step}, {}});
    CHECK(core.remaining() == 2);
    core.on(input_arrived{task_kind::forward, microbatch_id{0}, chunk_id{0}, rank_id{0}});
    for (const auto seq : {2 * step, 2 * step + 1}) {
      const auto actions = core.on(decide{});
      REQUIRE(actions.size() == 1);
      CHECK(std::get<launch>(actions[0]).seq == launch_seq{seq});
      CHECK_FALSE(core.step_complete());
      core.on(task_finished{launch_seq{seq}, rank_id{0}});
    }
    CHECK(core.step_complete());
  }
}

TEST_CASE("A snapshot tells arrivals, running launches, slots and finished tasks") {
  auto config = first_of_two(2);
  config.ranks = 2;
  config.lookahead = 1;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto f0 = task_of("F0").value();
  const auto bw0 = task_of("BW0").value();
  const auto bw1 = task_of("BW1").value();

  replayed(core, "step 4\narrived F0 rank 0\narrived F0 rank 1\narrived F1 rank 1\ndecide");
  auto now = core.snapshot();
  CHECK(now.step == step_id{4});
  CHECK(now.microbatches == 2);
  REQUIRE(now.running.size() == 1);
  CHECK(now.running[0].launched.what == f0);
  CHECK(now.running[0].behind == all_ranks(2));
  CHECK_FALSE(now.waits);
  CHECK(now.progress_of(microbatch_id{0}, chunk_id{0}) == chunk_progress{3, 0});
  CHECK(now.progress_of(microbatch_id{1}, chunk_id{0}) == chunk_progress{2, 0});
  CHECK(now.holders == std::vector{microbatch_id{0}});
  CHECK(now.memory == core.memory());
  CHECK(now.remaining == 3);
  CHECK(now.own_task_before(bw0) == f0);

  replayed(core, "finished 0 rank 1");
  CHECK(core.snapshot().running[0].behind == 1);
  replayed(core, "finished 0 rank 0");
  now = core.snapshot();
  CHECK(now.running.empty());
  CHECK_FALSE(now.waits);
  CHECK(now.is_done(f0));
  CHECK_FALSE(now.own_task_before(bw0));
  CHECK(now.own_task_before(bw1) == task_of("F1"));

  replayed(core, "decide");
  now = core.snapshot();
  CHECK(now.waits);
  CHECK(now.waiting == wait{wait_cause::ranks, *task_of("F1")});
  CHECK(now.bound == memory_bound::none);
  replayed(core, "arrived B0 rank 1\narrived B0 rank 0\ndecide");
  now = core.snapshot();
  CHECK_FALSE(now.waits);
  CHECK_FALSE(now.progress_of(microbatch_id{0}, chunk_id{0}).weight_done);
  CHECK(now.holders.size() == 1);
  replayed(core, "finished 1 rank 0\nfinished 1 rank 1");
  now = core.snapshot();
  CHECK(now.progress_of(microbatch_id{0}, chunk_id{0}) ==
        chunk_progress{3, 3, false, true, true, true});
  CHECK(now.is_done(bw0));
  CHECK(now.holders.empty());

  replayed(core, "abort\nstep 5");
  now = core.snapshot();
  CHECK(now.step == step_id{5});
  CHECK_FALSE(now.is_done(f0));
  CHECK(now.progress_of(microbatch_id{0}, chunk_id{0}) == chunk_progress{});
}

TEST_CASE("In a snapshot a weight gradient is done when the launch that folds it has ended") {
  auto config = last_of_two(2);
  config.mode = dispatch_mode::in_order;
  stage_core core{config, obeying({"F0", "F1", "BW1", "BW0"})};
  const auto is_done = [&](std::string_view text) {
    return core.snapshot().is_done(task_of(text).value());
  };
  replayed(core,
           "step 0\narrived F0 rank 0\narrived F1 rank 0\ndecide\nfinished 0 rank 0\ndecide\n"
           "finished 1 rank 0\ndecide\nfinished 2 rank 0");
  CHECK(is_done("BW1"));
  CHECK_FALSE(is_done("W1"));
  replayed(core, "decide");
  CHECK_FALSE(is_done("W1"));
  CHECK(core.snapshot().holders.size() == 2);
  replayed(core, "finished 3 rank 0");
  CHECK(is_done("W0"));
  CHECK(is_done("W1"));
  CHECK(core.snapshot().holders.empty());
}

TEST_CASE("A snapshot names the limit that a stage waits for") {
  auto config = first_of_two(3);
  std::string text = "step 0 6 3 9\narrived F2 rank 0\narrived F1 rank 0\ndecide";
  auto expected = memory_bound::none;
  SECTION("slots") {
    config.limit.slots = 1;
    expected = memory_bound::slots;
  }
  SECTION("bytes") {
    config.limit.bytes = 10;
    expected = memory_bound::bytes;
  }
  SECTION("forwards ahead of backwards") {
    config.limit.run_ahead = 1;
    text += "\nfinished 0 rank 0\ndecide";
    expected = memory_bound::run_ahead;
  }
  stage_core core{config, obeying({"F2", "F1", "F0", "BW0", "BW1", "BW2"})};
  replayed(core, text);
  const auto now = core.snapshot();
  REQUIRE(now.waits);
  CHECK(now.waiting.why == wait_cause::memory);
  CHECK(now.bound == expected);
}

TEST_CASE("A stage without any event has nothing to do") {
  const auto config = last_of_two(1);
  stage_core core{config, oldest_first(config.shape, true)};
  CHECK(core.step_complete());
  CHECK(replayed(core, "decide\n") == "\ndecide\n  wait complete\n");
}

TEST_CASE(
    "After abort nothing is launched; running tasks may end, and the next step starts clean") {
  auto config = last_of_two(2);
  config.limit.slots = 1;
  stage_core core{config, oldest_first(config.shape, true)};
  const auto text = R"(
step 0
arrived F0 rank 0
arrived F1 rank 0
decide
  launch 0 F0 hint_head 0 folds 0+0
abort
decide
finished 0 rank 0
decide
step 1
decide
  wait input F0
arrived F0 rank 0
decide
  launch 1 F0 only_choice 0 folds 0+0
finished 1 rank 0
decide
  launch 2 BW0 only_choice 0 folds 0+1
)";
  CHECK(replayed(core, text) == text);
}

TEST_CASE("A core moves with its state") {
  const auto config = last_of_two(1);
  stage_core first{config, oldest_first(config.shape, true)};
  replayed(first, "step 0\narrived F0 rank 0\n");
  stage_core second{std::move(first)};
  CHECK(second.ready() == 1);
  CHECK(second.config().stage == stage_id{1});
  CHECK(second.hint().name() == "table");
  CHECK(second.hint().backward_of(microbatch_id{0}, chunk_id{0}) == task_kind::backward_weight);
}

// ---- broken protocol

namespace {

/// The message with which a core of two microbatches and two ranks aborts at the last line.
std::string dies_of(const std::string& text) {
  auto config = first_of_two(2);
  config.ranks = 2;
  config.lookahead = 1;
  stage_core core{config, oldest_first(config.shape, true)};
  return abort_message([&] { replayed(core, text); });
}

const std::string both_running =
    "step 0\narrived F0 rank 0\narrived F0 rank 1\narrived F1 rank 0\narrived F1 rank 1\ndecide\n";

}  // namespace

TEST_CASE("An event that breaks the protocol aborts the process") {
  using Catch::Contains;
  CHECK(dies_of(both_running) == "it did not abort");
  CHECK_THAT(dies_of("step 0\narrived F0 rank 0\narrived F0 rank 0\n"),
             Contains("an input arrives once per step and rank"));
  CHECK_THAT(dies_of(both_running + "arrived F0 rank 0\n"),
             Contains("an input arrives once per step and rank"));
  CHECK_THAT(dies_of("step 0\narrived F0 rank 2\n"), Contains("the rank must belong to the stage"));
  CHECK_THAT(dies_of("step 0\narrived F2 rank 0\n"), Contains("the task must belong to the step"));
  CHECK_THAT(dies_of("step 0\narrived F0.1 rank 0\n"),
             Contains("the task must belong to the step"));
  CHECK_THAT(dies_of("arrived F0 rank 0\n"), Contains("an input must arrive during a step"));
  CHECK_THAT(dies_of("step 0\nfinished 0 rank 0\n"),
             Contains("a finished task must have been launched"));
  CHECK_THAT(dies_of(both_running + "finished 2 rank 0\n"),
             Contains("a finished task must have been launched"));
  CHECK_THAT(dies_of(both_running + "finished 0 rank 0\nfinished 0 rank 0\n"),
             Contains("each rank finishes a launch once"));
  CHECK_THAT(dies_of(both_running + "finished 0 rank 2\n"),
             Contains("each rank finishes a launch once"));
  CHECK_THAT(dies_of(both_running + "finished 1 rank 0\nfinished 1 rank 1\n"),
             Contains("launches must finish in the order of their numbers"));
  CHECK_THAT(dies_of("step 0\nstep 1\n"),
             Contains("a step begins only after the previous one has ended"));
  CHECK_THAT(dies_of(both_running + "abort\nstep 1\n"),
             Contains("a step begins only after the previous one has ended"));
  CHECK_THAT(dies_of("step 0 1 2 3\n"), Contains("slot_bytes must have one entry per microbatch"));
}

TEST_CASE("A gradient sent to the stage that produces it aborts") {
  const auto config = last_of_two(1);
  stage_core core{config, oldest_first(config.shape, true)};
  CHECK_THAT(abort_message([&] { replayed(core, "step 0\narrived B0 rank 0\n"); }),
             Catch::Contains("the last virtual stage produces its own gradient"));
}

TEST_CASE("An invalid configuration or policy aborts") {
  using Catch::Contains;
  const auto dies = [](const stage_config& config, const hint_table& hint) {
    return abort_message([&] { stage_core{config, table(hint)}; });
  };
  const auto good = first_of_two(1);
  const hint_table one_lane{good.shape};
  CHECK(dies(good, one_lane) == "it did not abort");
  auto config = good;
  config.ranks = 0;
  CHECK_THAT(dies(config, one_lane), Contains("ranks must be 1 to 64"));
  config.ranks = 65;
  CHECK_THAT(dies(config, one_lane), Contains("ranks must be 1 to 64"));
  config = good;
  config.stage = stage_id{2};
  CHECK_THAT(dies(config, one_lane), Contains("the stage must belong to the shape"));
  config = good;
  config.shape.chunks = 2;
  CHECK_THAT(dies(config, hint_table{config.shape}), Contains("the shape must be valid"));
  auto hint = one_lane;
  hint.lanes = lanes_max + 1;
  CHECK_THAT(dies(good, hint), Contains("lanes() must be 1 to lanes_max"));
  hint.lanes = 2;
  config = good;
  config.mode = dispatch_mode::in_order;
  CHECK_THAT(dies(config, hint), Contains("in-order dispatch needs a policy with one lane"));
  hint.assign([](const task&) { return 2U; }, [](const task&) { return 0U; });
  CHECK_THAT(dies(good, hint), Contains("lane_of must return a lane of the policy"));
}

}  // namespace rrfp
