#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <rrfp/simulate/duration_table.hpp>

#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;
using rrfp::testing::bf_hint;

namespace {

duration_table parse_well(const std::string& text, const pipeline_shape& shape) {
  auto parsed = duration_table::parse(text, "run.csv", shape);
  INFO((parsed ? "" : parsed.message()));
  REQUIRE(parsed.ok());
  return *parsed;
}

std::string parse_error(const std::string& text) {
  const auto parsed = duration_table::parse(text, "run.csv", {2, 2, 4, placement::interleaved});
  REQUIRE_FALSE(parsed.ok());
  return parsed.message();
}

}  // namespace

TEST_CASE("rows give the duration of each task and each message") {
  const auto table = parse_well(durations_header +
                                    "1,1,0,1,F,1.25\r\n"
                                    "\n"
                                    "1,0,0,1,grad,0.000003\n"
                                    "3,1,0,1,act,1e1",
                                linear(2, 2));
  CHECK(table.compute(step_id{0}, stage_id{1}, make_task(task_kind::forward, 1)) == 1'250'000);
  CHECK(table.link(step_id{0}, virtual_stage_id{0}, make_task(task_kind::backward, 1)) == 3);
  CHECK(table.link(step_id{2}, virtual_stage_id{1}, make_task(task_kind::forward, 1)) ==
        10'000'000);
  // A message without a row takes no time.
  CHECK(table.link(step_id{0}, virtual_stage_id{1}, make_task(task_kind::forward, 1)) == 0);
}

TEST_CASE("a wrong row is reported with file and line and what was expected") {
  CHECK(parse_error("") ==
        "run.csv:1: expected the header line 'step,stage,chunk,mb,kind,ms', got an empty file");
  CHECK(parse_error("1,0,0,0,F,1\n") ==
        "run.csv:1: expected the header line 'step,stage,chunk,mb,kind,ms', got '1,0,0,0,F,1'");
  CHECK(parse_error(durations_header + "1,0,0,0,F,1\n1,0,0,F,1\n") ==
        "run.csv:3: expected 6 columns (step,stage,chunk,mb,kind,ms), got '1,0,0,F,1'");
  CHECK(parse_error(durations_header + "1,0,0,0,F,1,2\n") ==
        "run.csv:2: expected 6 columns (step,stage,chunk,mb,kind,ms), got '1,0,0,0,F,1,2'");
  CHECK(parse_error(durations_header + "-1,0,0,0,F,1\n") ==
        "run.csv:2: expected a step number from 1 to 4503599627370496, got '-1'");
  CHECK(parse_error(durations_header + "0,0,0,0,F,1\n") ==
        "run.csv:2: expected a step number from 1 to 4503599627370496, got '0'");
  CHECK(parse_error(durations_header + "1,2,0,0,F,1\n") ==
        "run.csv:2: expected a stage from 0 to 1, got '2'");
  CHECK(parse_error(durations_header + "1,0,x,0,F,1\n") ==
        "run.csv:2: expected a chunk from 0 to 1, got 'x'");
  CHECK(parse_error(durations_header + "1,0,0,4,F,1\n") ==
        "run.csv:2: expected a microbatch from 0 to 3, got '4'");
  CHECK(parse_error(durations_header + "1,0,0,0,f,1\n") ==
        "run.csv:2: expected a kind (F, B, W, BW, act or grad), got 'f'");
  for (const auto* ms : {"-1", "nan", "inf", "", " 1", "1 ms", "1e10"})
    CHECK(parse_error(durations_header + "1,0,0,0,F," + ms + "\n") ==
          "run.csv:2: expected milliseconds from 0 to 1e9, got '" + std::string(ms) + "'");
  CHECK(parse_error(durations_header + "1,0,0,0,F,1\n1,0,0,0,F,2\n") ==
        "run.csv:3: expected one row per duration, got a second one in '1,0,0,0,F,2'");
  CHECK(parse_error(durations_header + "1,0,0,0,act,1\n") ==
        "run.csv:2: expected a stage that receives activations, got the first virtual stage in "
        "'1,0,0,0,act,1'");
  CHECK(parse_error(durations_header + "1,1,1,0,grad,1\n") ==
        "run.csv:2: expected a stage that receives gradients, got the last virtual stage in "
        "'1,1,1,0,grad,1'");
}

TEST_CASE("a file that cannot be read is named") {
  const auto read = duration_table::read("/nowhere/run.csv", linear(1, 1));
  REQUIRE_FALSE(read.ok());
  CHECK(read.message() == "/nowhere/run.csv: cannot be read: No such file or directory");
  CHECK_FALSE(duration_table::read("/", linear(1, 1)).ok());
}

TEST_CASE("a file that is not a table is refused before it fills the memory, and quoted in part") {
  const auto read = duration_table::read("/dev/zero", linear(1, 1));
  REQUIRE_FALSE(read.ok());
  CHECK(read.message() == "/dev/zero: expected durations of at most 268435456 bytes, got more");
  CHECK(parse_error(durations_header + std::string(100'000, 'x')).size() < 250);
}

TEST_CASE("the duration of a fused backward is derived from its parts, but not the reverse") {
  const auto shape = linear(1, 1);
  const auto split = ready_plan(bf_hint(shape, false));
  const auto fused = ready_plan(bf_hint(shape, true));
  const auto parts =
      parse_well(durations_header + "1,0,0,0,F,1\n1,0,0,0,B,2\n1,0,0,0,W,4\n", shape);
  CHECK(run_well(split, parts).makespan == 7'000'000);
  CHECK(run_well(fused, parts).makespan == 7'000'000);
  const auto whole = parse_well(durations_header + "1,0,0,0,F,1\n1,0,0,0,BW,5\n", shape);
  CHECK(run_well(fused, whole).makespan == 6'000'000);
  const auto refused = run(split, whole);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message() == "durations: expected a row for B0 of stage 0 in step 1, got none");
  const auto no_weight = parse_well(durations_header + "1,0,0,0,F,1\n1,0,0,0,B,2\n", shape);
  CHECK(run(split, no_weight).message() ==
        "durations: expected a row for W0 of stage 0 in step 1, got none");
  CHECK(run(fused, no_weight).message() ==
        "durations: expected a row for BW0 of stage 0 in step 1, got none");
  // The row of BW takes precedence over its parts.
  const auto all =
      parse_well(durations_header + "1,0,0,0,F,1\n1,0,0,0,B,2\n1,0,0,0,W,4\n1,0,0,0,BW,5\n", shape);
  CHECK(run_well(fused, all).makespan == 6'000'000);
}

TEST_CASE("a table covers the steps of its rows, for its own shape") {
  auto p = ready_plan(bf_hint(linear(1, 1), true));
  p.steps = 2;
  const auto table = parse_well(durations_header + "1,0,0,0,F,1\n1,0,0,0,BW,5\n", linear(1, 1));
  CHECK(run(p, table).message() ==
        "durations: expected a row for F0 of stage 0 in step 2, got none");
  CHECK_FALSE(run(ready_plan(bf_hint(linear(2, 1), true)), table).ok());
}

TEST_CASE("a run's durations, exported and read again, give the same run to the nanosecond") {
  for (const bool fused : {true, false}) {
    const pipeline_shape shape{3, 2, 7, placement::v};
    auto p = ready_plan(bf_hint(shape, fused));
    p.steps = 2;
    p.limit.slots = 4;
    duration_recorder recorder{shape};
    const auto ran = run_well(p, jittered_costs(shape, 11), &recorder);

    const auto file = (std::filesystem::temp_directory_path() /
                       ("rrfp_durations_" + std::to_string(::getpid()) + ".csv"))
                          .string();
    std::ofstream{file} << recorder.table().text();
    const auto read = duration_table::read(file, shape);
    std::filesystem::remove(file);
    REQUIRE(read.ok());
    CHECK(read->text() == recorder.table().text());

    const auto again = run_well(p, *read);
    CHECK(again.makespan == ran.makespan);
    CHECK(again.lower_bound == ran.lower_bound);
    CHECK(again.events == ran.events);
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      CHECK(again.stages[s].order == ran.stages[s].order);
      CHECK(again.stages[s].idle == ran.stages[s].idle);
    }
  }
}

TEST_CASE("rows are written in the order of step, stage, chunk, microbatch and kind") {
  duration_table table{linear(2, 2)};
  table.set_compute(step_id{1}, stage_id{0}, make_task(task_kind::forward), 5);
  table.set_link(step_id{0}, virtual_stage_id{1}, make_task(task_kind::forward), 1'000'000);
  table.set_compute(step_id{0}, stage_id{1}, make_task(task_kind::backward_weight), 12'345'678);
  table.set_compute(step_id{0}, stage_id{0}, make_task(task_kind::forward, 1), 0);
  CHECK(table.text() == durations_header +
                            "1,0,0,1,F,0.000000\n"
                            "1,1,0,0,BW,12.345678\n"
                            "1,1,0,0,act,1.000000\n"
                            "2,0,0,0,F,0.000005\n");
}

}  // namespace rrfp::simulate
