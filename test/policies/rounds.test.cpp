/// The policies that work in rounds, tested through the decisions of one stage core.
#include <catch2/catch.hpp>

#include <rrfp/core/stage_core.hpp>

#include "support.hpp"

using namespace rrfp;
using namespace rrfp::policies::testing;

namespace {

/// One stage whose inputs arrive when the test says so and whose tasks take no time.
class one_stage {
 public:
  one_stage(std::string_view policy, const pipeline_shape& shape, std::uint32_t stage,
            const memory_limit& limit = {})
      : core_({shape, stage_id{stage}, 1, 0, dispatch_mode::ready, limit},
              [policies = policies_of(policy, shape)](const pipeline_shape&, stage_id of) {
                return policies->make(of);
              }) {
    begin();
  }

  void begin() { core_.on(step_began{step_id{step_++}, {}}); }

  /// Inputs like "F0 F1 B0.1".
  one_stage& arrived(std::string_view inputs) {
    while (!inputs.empty()) {
      const auto end = inputs.find(' ');
      const auto t = task_of(inputs.substr(0, end));
      REQUIRE(t.has_value());
      core_.on(input_arrived{t->kind, t->mb, t->chunk, rank_id{0}});
      inputs = end == inputs.npos ? "" : inputs.substr(end + 1);
    }
    return *this;
  }

  /// The next `count` decisions, each task finishing before the next is chosen; "wait" for a wait.
  std::string runs(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const auto actions = core_.on(decide{});
      REQUIRE(actions.size() == 1);
      if (!text.empty()) text += ' ';
      if (const auto* l = std::get_if<launch>(&actions[0])) {
        const auto seq = l->seq;
        text += to_string(l->what);
        core_.on(task_finished{seq, rank_id{0}});
      } else {
        text += "wait";
      }
    }
    return text;
  }

 private:
  stage_core core_;
  std::uint64_t step_ = 0;
};

/// A first stage with six ready F, of which two have run, and the gradients of these two.
one_stage with_both_ready(std::string_view policy) {
  one_stage stage{policy, linear(2, 6), 0};
  stage.arrived("F0 F1 F2 F3 F4 F5");
  REQUIRE(stage.runs(2) == "F0 F1");
  stage.arrived("B0 B1");
  return stage;
}

}  // namespace

TEST_CASE("BF alternates B and F while both are ready") {
  CHECK(with_both_ready("bf").runs(4) == "BW0 F2 BW1 F3");
}

TEST_CASE("BF never waits for the direction whose turn it is") {
  one_stage stage{"bf", linear(2, 3), 0};
  stage.arrived("F0 F1 F2");
  CHECK(stage.runs(4) == "F0 F1 F2 wait");
  stage.arrived("B0 B1 B2");
  CHECK(stage.runs(4) == "BW0 BW1 BW2 wait");
}

TEST_CASE("BF's last stage runs each B as soon as its F is done") {
  one_stage stage{"bf", linear(2, 3), 1};
  stage.arrived("F0 F1 F2");
  CHECK(stage.runs(6) == "F0 BW0 F1 BW1 F2 BW2");
}

TEST_CASE("BFW runs W only if neither B nor F can run, then begins a new round") {
  auto stage = with_both_ready("bfw");
  CHECK(stage.runs(8) == "B0 F2 B1 F3 F4 F5 W0 W1");
  stage.arrived("B2 B3");
  CHECK(stage.runs(2) == "B2 B3");
  CHECK(stage.runs(1) == "W2");
  stage.arrived("B4 B5");
  CHECK(stage.runs(5) == "B4 B5 W3 W4 W5");
}

TEST_CASE("BFW begins with B after a W, even if the previous B left an F due") {
  one_stage stage{"bfw", linear(2, 3), 0};
  stage.arrived("F0 F1");
  CHECK(stage.runs(2) == "F0 F1");
  stage.arrived("B0");
  CHECK(stage.runs(2) == "B0 W0");
  stage.arrived("B1 F2");
  CHECK(stage.runs(3) == "B1 F2 W1");
}

TEST_CASE("BFW+ fills the pipeline before it drains it, and drains the last stage first") {
  one_stage first{"bfw_plus", linear(3, 6), 0};
  first.arrived("F0 F1 F2 F3 B0");
  CHECK(first.runs(5) == "F0 F1 F2 F3 B0");
  one_stage middle{"bfw_plus", linear(3, 6), 1};
  middle.arrived("F0 F1 F2 F3 B0 B1");
  CHECK(middle.runs(6) == "F0 F1 B0 F2 B1 F3");
  one_stage last{"bfw_plus", linear(3, 6), 2};
  last.arrived("F0 F1 F2");
  CHECK(last.runs(6) == "F0 B0 F1 B1 F2 B2");
}

TEST_CASE("BFW+ runs W first if a ready F waits for a slot") {
  one_stage stage{"bfw_plus", linear(2, 6), 0, {.slots = 2}};
  stage.arrived("F0 F1 F2 B0 B1");
  CHECK(stage.runs(5) == "F0 F1 B0 W0 F2");
}

TEST_CASE("BFW+ takes the F of the larger chunk first") {
  one_stage stage{"bfw_plus", {2, 2, 4, placement::interleaved}, 0};
  stage.arrived("F0 F1 F0.1 F1.1");
  CHECK(stage.runs(4) == "F0.1 F1.1 F0 F1");
}

TEST_CASE("on a V, BFW+ alternates on the first stage, which has the last part of the model") {
  one_stage stage{"bfw_plus", {2, 2, 8, placement::v}, 0};
  stage.arrived("F0 F1 F2 F3 F4 F5 F0.1 F1.1");
  CHECK(stage.runs(9) == "F0.1 F1.1 F0 F1 B0.1 F2 B1.1 F3 F4");
}

TEST_CASE("FB alternates F and B while both are ready") {
  // The previous F was the first half of a round whose second half is due.
  CHECK(with_both_ready("fb").runs(4) == "BW0 F2 BW1 F3");
}

TEST_CASE("after a wait, BF and BFW begin a new round with B") {
  one_stage fused{"bf", linear(2, 3), 0};
  fused.arrived("F0 F1");
  fused.runs(2);
  fused.arrived("B0");
  REQUIRE(fused.runs(2) == "BW0 wait");
  CHECK(fused.arrived("F2 B1").runs(2) == "BW1 F2");

  one_stage split{"bfw", linear(2, 3), 0};
  split.arrived("F0 F1");
  split.runs(2);
  // W1 has to wait for W0, so it does not end the round.
  split.arrived("B1");
  REQUIRE(split.runs(2) == "B1 wait");
  CHECK(split.arrived("F2 B0").runs(2) == "B0 F2");
}

TEST_CASE("after a wait, FB begins a new round with F") {
  one_stage stage{"fb", linear(2, 3), 0};
  stage.arrived("F0 F1");
  REQUIRE(stage.runs(3) == "F0 F1 wait");
  CHECK(stage.arrived("B0 F2").runs(2) == "F2 BW0");
}

TEST_CASE("a step begins with BF's B and FB's F") {
  for (const auto& [name, first] :
       {std::pair{"bf", task_kind::backward_weight}, std::pair{"bfw", task_kind::backward},
        std::pair{"fb", task_kind::forward}}) {
    const auto hint = policies_of(name, linear(2, 2))->make(stage_id{0});
    const auto lane = [&](task_kind kind) {
      return hint->lane_of({kind, microbatch_id{0}, chunk_id{0}});
    };
    CHECK(hint->order({}).lane[0] == lane(first));
    // A step that was aborted in the middle of a round leaves no state behind.
    hint->launched({first, microbatch_id{0}, chunk_id{0}});
    CHECK(hint->order({}).lane[0] != lane(first));
    hint->reset();
    CHECK(hint->order({}).lane[0] == lane(first));
  }
}

TEST_CASE("b_priority runs B whenever one is ready") {
  CHECK(with_both_ready("b_priority").runs(5) == "BW0 BW1 F2 F3 F4");
}

TEST_CASE("f_priority runs F whenever one is ready") {
  CHECK(with_both_ready("f_priority").runs(6) == "F2 F3 F4 F5 BW0 BW1");
}

TEST_CASE("F takes the smaller chunk first, then the smaller microbatch") {
  for (const auto* policy : {"bf", "bfw", "fb", "f_priority", "b_priority"}) {
    one_stage stage{policy, interleaved(2, 3, 2), 0};
    stage.arrived("F1.2 F0.2 F1.1 F0.1 F1 F0");
    CHECK(stage.runs(6) == "F0 F1 F0.1 F1.1 F0.2 F1.2");
  }
}

TEST_CASE("B takes the larger chunk first, then the smaller microbatch") {
  for (const auto* policy : {"bf", "fb", "f_priority", "b_priority"}) {
    one_stage stage{policy, interleaved(2, 3, 2), 0};
    stage.arrived("F0 F1 F0.1 F1.1 F0.2 F1.2");
    stage.runs(6);
    stage.arrived("B1 B0 B1.1 B0.1 B1.2 B0.2");
    CHECK(stage.runs(6) == "BW0.2 BW1.2 BW0.1 BW1.1 BW0 BW1");
  }
}

TEST_CASE("W takes the older microbatch first, then the chunk whose B ran first") {
  one_stage stage{"bfw", interleaved(2, 2, 2), 0};
  stage.arrived("F0 F1 F0.1 F1.1");
  stage.runs(4);
  stage.arrived("B1 B0 B1.1 B0.1");
  CHECK(stage.runs(8) == "B0.1 B1.1 B0 B1 W0.1 W0 W1.1 W1");
}
