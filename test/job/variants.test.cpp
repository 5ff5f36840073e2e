/// [[compare]]: one job, several runs.
#include <catch2/catch.hpp>

#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

const std::string two_ways = R"([pipeline]
stages = 4
[jitter]
level = "J2"
[[compare]]
name = "in-order 1F1B"
dispatch.mode = "in-order"
dispatch.policy = "one_f_one_b"
[[compare]]
name = "ready BFW"
dispatch = { mode = "ready", policy = "bfw" }
)";

TEST_CASE("A job that compares nothing is its only variant") {
  const auto j = good("compare = []\n[pipeline]\nstages = 3");
  const auto all = job::variants(j);
  REQUIRE(all.size() == 1);
  CHECK(all[0] == j);
}

TEST_CASE("Variants share everything that they do not set, including the jitter") {
  const auto all = job::variants(good(two_ways, {"pipeline.microbatches=6"}));
  REQUIRE(all.size() == 2);
  CHECK(all[0].name == "in-order 1F1B");
  CHECK(all[0].dispatch.mode == dispatch_mode::in_order);
  CHECK(all[0].dispatch.policy == "one_f_one_b");
  CHECK(job::effective_limit(all[0], stage_id{0}).slots == 0);
  CHECK(all[1].name == "ready BFW");
  CHECK(all[1].dispatch.mode == dispatch_mode::ready);
  CHECK(job::effective_limit(all[1], stage_id{0}).slots == 8);
  for (const auto& v : all) {
    CHECK(v.compare.empty());
    CHECK(v.pipeline.stages == 4);
    CHECK(v.pipeline.microbatches == 6);
    CHECK(v.jitter.probability == 0.2);
  }
}

TEST_CASE("A variant's keys override its short form, and both override the job") {
  const auto all =
      job::variants(good("[jitter]\nalpha = 9\n"
                         "[[compare]]\nname = \"a\"\njitter.alpha = 3\n"
                         "jitter.level = \"J3\"\n"));
  CHECK(all[0].jitter.alpha == 3.0);
  CHECK(all[0].jitter.probability == 0.3);
}

TEST_CASE("An invalid variant is refused with its name and line") {
  const auto one = [](const std::string& settings) {
    return refusal("[pipeline]\nstages = 4\n[[compare]]\nname = \"b\"\n" + settings);
  };
  CHECK(one("") == "accepted");
  CHECK(one("dispatch.mode = \"eager\"") ==
        "x.toml:5: dispatch.mode: expected \"in-order\" or \"ready\", got \"eager\"");
  CHECK(one("dispatch.mood = \"ready\"") ==
        "x.toml:5: dispatch.mood: unknown key, did you mean mode?");
  CHECK(one("[compare.dispatch]\nslots = 0") ==
        "x.toml:6: dispatch.slots: expected an integer >= 1, got 0");
  CHECK(one("pipeline.placement = \"v\"") ==
        "x.toml:5: variant \"b\": pipeline.placement: \"v\" expects pipeline.chunks = 2, got 1 "
        "(the default)");
  CHECK(one("dispatch = { mode = \"in-order\", policy = \"gpipe\", slots = 7 }") ==
        "x.toml:5: variant \"b\": dispatch.slots: F7 of stage 0 exceeds the memory limit: the "
        "sequence needs more than 7 slots");
}

TEST_CASE("An override of a key that a variant sets skips the comparison, and a note says so") {
  const auto one = good(two_ways, {"dispatch.policy=zb_h1"});
  CHECK(one.compare.empty());
  CHECK(one.dispatch.policy == "zb_h1");
  REQUIRE(one.notes.size() == 1);
  CHECK(one.notes[0] ==
        "--set dispatch.policy=zb_h1: variant \"in-order 1F1B\" sets dispatch.policy as well; "
        "[[compare]] is skipped and the job runs once");

  const auto both = good(two_ways, {"dispatch.policy=zb_h1", "dispatch.mode=in-order"});
  CHECK(both.notes.size() == 1);
  CHECK(job::variants(both).size() == 1);

  const auto other = good(two_ways, {"dispatch.slots=4"});
  CHECK(other.compare.size() == 2);
  CHECK(other.notes.empty());
}

TEST_CASE("An override of a short form or of a key that it sets skips the comparison") {
  const std::string by_level = "[[compare]]\nname = \"a\"\njitter.level = \"J3\"\n";
  CHECK(good(by_level, {"jitter.alpha=2"}).compare.empty());
  const std::string by_alpha = "[[compare]]\nname = \"a\"\njitter.alpha = 3\n";
  CHECK(good(by_alpha, {"jitter.level=J1"}).compare.empty());
  CHECK(good(by_alpha, {"jitter.probability=0.5"}).compare.size() == 1);
}

TEST_CASE("An override that makes a variant invalid is refused") {
  CHECK(refusal(two_ways, {"dispatch.slots=2"}) ==
        "--set dispatch.slots=2: variant \"in-order 1F1B\": dispatch.slots: F2 of stage 0 exceeds "
        "the memory limit: the sequence needs more than 2 slots");
}

TEST_CASE("Variants need distinct names") {
  CHECK(refusal("\n[[compare]]\ndispatch.mode = \"ready\"") ==
        "x.toml:2: compare: expected a name");
  CHECK(refusal("[[compare]]\nname = 3") == "x.toml:2: name: expected a string, got an integer 3");
  CHECK(refusal("[[compare]]\nname = \"a\"\n[[compare]]\nname = \"a\"") ==
        "x.toml:3: compare: expected distinct names, got \"a\" twice");
  CHECK(refusal("[[compare]]\nname = \"a\"\n[[compare.compare]]\nname = \"b\"") ==
        "x.toml:3: compare: expected [[compare]] tables, got an array [a table]");
  std::string many;
  for (int i = 0; i < 65; ++i) many += "[[compare]]\nname = \"" + std::to_string(i) + "\"\n";
  CHECK(refusal(many) == "x.toml:129: compare: expected at most 64 variants");
}

}  // namespace
}  // namespace rrfp::testing
