
#include "replay.hpp"
#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;
using rrfp::testing::bf_hint;
using rrfp::testing::kind_first_hint;

namespace {

stage_config config_of(const plan& p, std::uint32_t stage) {
  return {.shape = p.shape,
          .stage = stage_id{stage},
          .ranks = 1,
          .lookahead = p.lookahead,
          .mode = p.rule.mode,
          .limit = p.limit};
}

/// A run with jitter and everything else that can differ between runs.
plan jittered_plan() {
  auto p = ready_plan(bf_hint({4, 2, 10, placement::interleaved}, false));
  p.limit.slots = 6;
  p.lookahead = 1;
  p.steps = 2;
  p.slot_bytes = [](step_id, stage_id s, microbatch_id mb) -> std::uint64_t {
    return s.value() + mb.value();
  };
  return p;
}

}  // namespace

TEST_CASE("a recorded run, replayed into a new core, gives the same actions on every stage") {
  const auto p = jittered_plan();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    transcript_recorder recorder{p.shape.stages};
    run_well(p, jittered_costs(p.shape, seed), &recorder);
    for (std::uint32_t s = 0; s < p.shape.stages; ++s) {
      const auto lines = recorder.lines(stage_id{s});
      CHECK(lines.size() > 200);
      const auto again = replay(config_of(p, s), p.rule.make_policy, lines);
      INFO((again ? "" : again.message()));
      CHECK(again.ok());
    }
  }
}

TEST_CASE("a replay that differs names the line") {
  const auto p = jittered_plan();
  transcript_recorder recorder{p.shape.stages};
  run_well(p, jittered_costs(p.shape, 1), &recorder);
  const auto recorded = recorder.lines(stage_id{1});
  const auto replayed = [&](const std::vector<std::string>& lines) {
    return replay(config_of(p, 1), p.rule.make_policy, lines);
  };
  std::vector<std::string> lines(recorded.begin(), recorded.end());
  REQUIRE(replayed(lines).ok());

  std::size_t launch_at = 0;
  while (!lines[launch_at].starts_with("launch")) ++launch_at;
  const auto number = "line " + std::to_string(launch_at + 1) + ": ";

  auto changed = lines;
  changed[launch_at] = "launch 0 F9 hint_head 0 folds 9+0";
  CHECK(replayed(changed).message() ==
        number + "expected '" + changed[launch_at] + "', got '" + lines[launch_at] + "'");

  auto missing = lines;
  missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(launch_at));
  CHECK(replayed(missing).message() ==
        number + "expected '" + missing[launch_at] + "', got '" + lines[launch_at] + "'");

  auto doubled = lines;
  doubled.insert(doubled.begin() + static_cast<std::ptrdiff_t>(launch_at), lines[launch_at]);
  CHECK_FALSE(replayed(doubled).ok());

  auto cut = lines;
  cut.resize(launch_at);
  CHECK(replayed(cut).message() == number + "expected the end, got '" + lines[launch_at] + "'");

  auto garbage = lines;
  garbage[launch_at] = "lunch 0";
  CHECK_FALSE(replayed(garbage).ok());

  auto annotated = lines;
  annotated.insert(annotated.begin() + 3, {"# the third event", ""});
  CHECK(replayed(annotated).ok());
}

TEST_CASE("a replay detects another policy") {
  const auto p = jittered_plan();
  transcript_recorder recorder{p.shape.stages};
  run_well(p, jittered_costs(p.shape, 1), &recorder);
  const auto other = ready_plan(kind_first_hint(p.shape, false, task_kind::forward));
  CHECK_FALSE(replay(config_of(p, 1), other.rule.make_policy, recorder.lines(stage_id{1})).ok());
}

}  // namespace rrfp::simulate
