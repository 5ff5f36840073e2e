#include <fstream>

#include <catch2/catch.hpp>

#include <rrfp/core/check_policy.hpp>
#include <rrfp/core/sequence.hpp>
#include <rrfp/policies/registry.hpp>

#include "support.hpp"

using namespace rrfp;
using namespace rrfp::policies;
using namespace rrfp::policies::testing;

namespace {

/// A shape that the policy accepts.
pipeline_shape shape_for(std::string_view name) {
  if (name == "zb_v" || name == "dualpipe_v") return folded(3, 7);
  if (name == "interleaved_1f1b") return interleaved(3, 2, 7);
  return linear(3, 7);
}

std::string refusal(std::string_view name, const pipeline_shape& shape) {
  const auto made = registry().make(name, shape);
  return made ? "" : made.message();
}

/// A file in the test's own folder.
std::string write_file(const std::string& name, const std::string& text) {
  std::ofstream{name} << text;
  return name;
}

}  // namespace

TEST_CASE("every policy is listed by name with a summary") {
  std::vector<std::string_view> names;
  for (const auto& info : registry().known()) {
    names.push_back(info.name);
    CHECK_FALSE(info.summary.empty());
    CHECK(info.summary.find('\n') == info.summary.npos);
  }
  CHECK(names == std::vector<std::string_view>{
                     "bf", "bfw", "bfw_plus", "fb", "f_priority", "b_priority", "one_f_one_b",
                     "gpipe", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "dualpipe_v"});
}

TEST_CASE("every known policy can be made under its own name, one object per stage") {
  for (const auto& info : registry().known()) {
    const auto shape = shape_for(info.name);
    const auto set = policies_of(info.name, shape);
    CHECK(set->name() == info.name);
    CHECK((set->sequences() != nullptr) == info.fixed);
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      const auto made = set->make(stage_id{s});
      REQUIRE(made != nullptr);
      CHECK(made->name() == info.name);
    }
  }
}

TEST_CASE(
    "a fixed schedule ranks the tasks of a stage by their position in that stage's sequence") {
  const auto shape = folded(3, 7);
  const auto set = policies_of("zb_v", shape);
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    const auto made = set->make(stage_id{s});
    const auto& order = (*set->sequences())[s];
    for (std::size_t at = 0; at < order.size(); ++at) CHECK(made->rank(order[at]) == at);
  }
}

TEST_CASE("the error for an unknown policy lists the known ones") {
  const auto message = refusal("1f1b", linear(2, 2));
  CHECK(
      message ==
      "policy: expected one of bf, bfw, bfw_plus, fb, f_priority, b_priority, one_f_one_b, gpipe, "
      "interleaved_1f1b, zb_h1, zb_h2, zb_v, dualpipe_v, table:FILE.csv, lib:FILE.so, "
      "got \"1f1b\"");
}

TEST_CASE("the error for an unsupported shape names the expected one") {
  for (const auto* name : {"one_f_one_b", "gpipe", "zb_h1", "zb_h2"})
    CHECK(refusal(name, interleaved(2, 2, 8)) ==
          "policy " + std::string{name} + ": expected chunks = 1, got 2");
  CHECK(refusal("interleaved_1f1b", linear(2, 2)) ==
        "policy interleaved_1f1b: expected placement interleaved, got placement linear");
  CHECK(refusal("interleaved_1f1b", folded(2, 2)) ==
        "policy interleaved_1f1b: expected placement interleaved, got placement v");
  CHECK(refusal("zb_v", interleaved(2, 2, 2)) ==
        "policy zb_v: expected placement v with chunks = 2, got placement interleaved");
  CHECK(refusal("dualpipe_v", interleaved(2, 2, 8)) ==
        "policy dualpipe_v: expected placement v with chunks = 2, got placement interleaved");
  CHECK(refusal("zb_h2", linear(4, 6)) ==
        "policy zb_h2: expected microbatches >= 7 (2p-1, p = 4 stages), got 6");
  CHECK(refusal("dualpipe_v", folded(4, 7)) ==
        "policy dualpipe_v: expected microbatches >= 8 (2p, p = 4 stages), got 7");
}

TEST_CASE("the minimum number of microbatches is accepted") {
  CHECK(refusal("zb_h2", linear(4, 7)).empty());
  CHECK(refusal("dualpipe_v", folded(4, 8)).empty());
}

TEST_CASE("an impossible shape is refused before the policy is made") {
  CHECK(refusal("bf", {0, 1, 1, placement::linear}) == "stages: expected at least 1, got 0");
  CHECK(refusal("zb_v", {2, 3, 1, placement::v}) == "placement v: expected chunks = 2, got 3");
}

TEST_CASE("a table is a policy named after its file") {
  const auto file = write_file("registry_good.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const auto set = policies_of("table:" + file, linear(2, 2));
  CHECK(set->name() == "table:registry_good.csv");
  REQUIRE(set->sequences() != nullptr);
  CHECK(text_of((*set->sequences())[0]) == "F0 F1 BW0 BW1");
  CHECK(text_of((*set->sequences())[1]) == "F0 BW0 F1 BW1");
  CHECK(set->make(stage_id{1})->name() == "table:registry_good.csv");
}

TEST_CASE("a table that cannot be read, parsed or executed is refused with the name of its file") {
  CHECK(refusal("table:registry_none.csv", linear(1, 1)) ==
        "registry_none.csv: expected a CSV file with a schedule, cannot open it");
  CHECK(refusal("table:.", linear(1, 1)) == ".: expected a CSV file, cannot read it");

  const auto malformed = write_file("registry_malformed.csv", "0F0,0X0\n");
  CHECK(
      refusal("table:" + malformed, linear(1, 1)).starts_with("registry_malformed.csv:1: cell 2"));

  const auto incomplete = write_file("registry_incomplete.csv", "0F0\n");
  CHECK(refusal("table:" + incomplete, linear(1, 1)) ==
        "registry_incomplete.csv: B0 of stage 0 is missing");

  const auto cyclic = write_file("registry_cyclic.csv", "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n");
  CHECK(refusal("table:" + cyclic, linear(2, 2))
            .starts_with("registry_cyclic.csv: the order can never complete; cycle of waits"));
}

TEST_CASE("a table that is too large is refused") {
  CHECK(refusal("table:/dev/zero", linear(1, 1)) ==
        "/dev/zero: expected at most 67108864 bytes, got more");
}

TEST_CASE("given sequences become a policy set") {
  const auto set =
      std::make_shared<const policy_set>("nominal", sequences_of("gpipe", linear(2, 2)));
  CHECK(set->name() == "nominal");
  CHECK(*set->sequences() == sequences_of("gpipe", linear(2, 2)));
  CHECK(set->make(stage_id{0})->name() == "nominal");
}
