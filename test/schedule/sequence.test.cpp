#include <initializer_list>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/core/sequence.hpp>

#include "test_policies.hpp"

namespace rrfp {
namespace {

sequence of(std::initializer_list<std::string_view> texts) {
  sequence order;
  for (const auto text : texts) order.push_back(task_of(text).value());
  return order;
}

std::string refusal(const pipeline_shape& shape, const std::vector<sequence>& sequences) {
  const auto checked = check_sequences(shape, sequences);
  return checked ? "accepted" : checked.message();
}

const pipeline_shape two_by_two{2, 1, 2, placement::linear};

}  // namespace

TEST_CASE("1F1B of any size is complete and free of cycles") {
  for (std::uint32_t p = 1; p <= 5; ++p)
    for (std::uint32_t m = 1; m <= 7; ++m) {
      const pipeline_shape shape{p, 1, m, placement::linear};
      std::vector<sequence> sequences;
      for (std::uint32_t s = 0; s < p; ++s)
        sequences.push_back(testing::one_f_one_b(shape, stage_id{s}));
      REQUIRE(refusal(shape, sequences) == "accepted");
    }
}

TEST_CASE("Stages may split some backwards and fuse others, with W as late as they like") {
  CHECK(refusal(two_by_two, {of({"F0", "F1", "B0", "BW1", "W0"}),
                             of({"F0", "BW0", "F1", "B1", "W1"})}) == "accepted");
}

TEST_CASE("A wrong number of sequences is refused") {
  CHECK(refusal(two_by_two, {of({"F0", "F1", "BW0", "BW1"})}) ==
        "expected one sequence for each of 2 stages, got 1");
}

TEST_CASE("An impossible shape is refused before its sequences are read") {
  CHECK(refusal({0, 1, 2, placement::linear}, {}) == "stages: expected at least 1, got 0");
}

TEST_CASE("A missing task is named with its stage") {
  const auto whole = of({"F0", "BW0", "F1", "BW1"});
  CHECK(refusal(two_by_two, {of({"F0", "BW0", "BW1"}), whole}) == "F1 of stage 0 is missing");
  CHECK(refusal(two_by_two, {whole, of({"F0", "F1", "BW0"})}) == "B1 of stage 1 is missing");
  CHECK(refusal(two_by_two, {whole, of({"F0", "F1", "BW0", "B1"})}) == "W1 of stage 1 is missing");
  CHECK(refusal(two_by_two, {whole, {}}) == "F0 of stage 1 is missing");
}

TEST_CASE(
    "A duplicate task is named with its stage, including a fused and a split form of the same "
    "one") {
  const auto whole = of({"F0", "BW0", "F1", "BW1"});
  CHECK(refusal(two_by_two, {of({"F0", "F0", "F1", "BW0", "BW1"}), whole}) ==
        "F0 of stage 0 occurs twice");
  CHECK(refusal(two_by_two, {whole, of({"F0", "B0", "F1", "BW0", "BW1"})}) ==
        "BW0 of stage 1 occurs twice");
  CHECK(refusal(two_by_two, {whole, of({"F0", "BW0", "W0", "F1", "BW1"})}) ==
        "W0 of stage 1 occurs twice");
  CHECK(refusal(two_by_two, {whole, of({"F0", "W0", "BW0", "F1", "BW1"})}) ==
        "BW0 of stage 1 occurs twice");
}

TEST_CASE("A task that does not exist is named with the size of the job") {
  const auto whole = of({"F0", "BW0", "F1", "BW1"});
  CHECK(refusal(two_by_two, {of({"F0", "BW0", "F1", "BW1", "F2"}), whole}) ==
        "F2 of stage 0 does not exist: the job has 2 microbatches and 1 chunks");
  CHECK(refusal(two_by_two, {whole, of({"F0.1", "BW0", "F1", "BW1"})}) ==
        "F0.1 of stage 1 does not exist: the job has 2 microbatches and 1 chunks");
}

TEST_CASE("A cycle of waits is named stage by stage") {
  // Stage 0 needs the gradient of microbatch 0 before it sends microbatch 1; stage 1 the reverse.
  CHECK(refusal(two_by_two, {of({"F0", "BW0", "F1", "BW1"}), of({"F0", "F1", "BW0", "BW1"})}) ==
        "the order can never complete; cycle of waits: "
        "stage 0 stops at BW0 (position 1), which needs B0 of stage 1; "
        "stage 1 stops at F1 (position 1), which needs F1 of stage 0");
}

TEST_CASE("A stage that waits for itself is a cycle of one") {
  CHECK(refusal(two_by_two, {of({"BW0", "F0", "F1", "BW1"}), of({"F0", "BW0", "F1", "BW1"})}) ==
        "the order can never complete; cycle of waits: "
        "stage 0 stops at BW0 (position 0), which needs F0 of stage 0");
  CHECK(
      refusal(two_by_two, {of({"F0", "W0", "B0", "F1", "BW1"}), of({"F0", "BW0", "F1", "BW1"})}) ==
      "the order can never complete; cycle of waits: "
      "stage 0 stops at W0 (position 1), which needs B0 of stage 0");
}

TEST_CASE("A cycle leaves out the stages that only lead to it") {
  const pipeline_shape shape{3, 1, 1, placement::linear};
  CHECK(refusal(shape, {of({"F0", "BW0"}), of({"F0", "BW0"}), of({"BW0", "F0"})}) ==
        "the order can never complete; cycle of waits: "
        "stage 2 stops at BW0 (position 0), which needs F0 of stage 2");
}

TEST_CASE("Chunks of one stage feed each other") {
  const pipeline_shape shape{1, 2, 1, placement::v};
  CHECK(refusal(shape, {of({"F0", "F0.1", "BW0.1", "BW0"})}) == "accepted");
  CHECK(refusal(shape, {of({"F0.1", "F0", "BW0.1", "BW0"})}) ==
        "the order can never complete; cycle of waits: "
        "stage 0 stops at F0.1 (position 0), which needs F0 of stage 0");
}

namespace {

std::string slots_refusal(const sequence& order, const memory_limit& limit,
                          const std::vector<std::uint64_t>& bytes = {}, std::uint32_t chunks = 1) {
  const pipeline_shape shape{2, chunks, 3,
                             chunks == 1 ? placement::linear : placement::interleaved};
  const auto checked = check_slots(shape, stage_id{1}, order, limit, bytes);
  return checked ? "accepted" : checked.message();
}

}  // namespace

TEST_CASE("A sequence that needs too many slots is refused at the task that needs one more") {
  const auto order = of({"F0", "F1", "BW0", "F2", "BW1", "BW2"});
  CHECK(slots_refusal(order, {}) == "accepted");
  CHECK(slots_refusal(order, {2, 0, 0}) == "accepted");
  CHECK(slots_refusal(order, {1, 0, 0}) ==
        "F1 of stage 1 exceeds the memory limit: the sequence needs more than 1 slots");
}

TEST_CASE("A slot is held until W, and by an early backward until the gap before it is closed") {
  CHECK(slots_refusal(of({"F0", "B0", "F1", "W0", "BW1", "F2", "BW2"}), {1, 0, 0}) ==
        "F1 of stage 1 exceeds the memory limit: the sequence needs more than 1 slots");
  CHECK(slots_refusal(of({"F0", "F1", "BW1", "F2", "BW0", "BW2"}), {2, 0, 0}) ==
        "F2 of stage 1 exceeds the memory limit: the sequence needs more than 2 slots");
  CHECK(slots_refusal(of({"F0", "F1", "BW1", "BW0", "F2", "BW2"}), {2, 0, 0}) == "accepted");
}

TEST_CASE("A slot is held until the last chunk of the microbatch is folded") {
  const auto order = of(
      {"F0", "F0.1", "BW0.1", "F1", "BW0", "F1.1", "BW1.1", "BW1", "F2", "F2.1", "BW2.1", "BW2"});
  CHECK(slots_refusal(order, {1, 0, 0}, {}, 2) ==
        "F1 of stage 1 exceeds the memory limit: the sequence needs more than 1 slots");
  CHECK(slots_refusal(order, {2, 0, 0}, {}, 2) == "accepted");
}

TEST_CASE("Bytes are counted, and a microbatch larger than the limit may run alone") {
  const auto order = of({"F0", "F1", "BW0", "BW1", "F2", "BW2"});
  CHECK(slots_refusal(order, {0, 10, 0}, {4, 6, 99}) == "accepted");
  CHECK(slots_refusal(order, {0, 9, 0}, {4, 6, 99}) ==
        "F1 of stage 1 exceeds the memory limit: the sequence needs more than 9 bytes");
}

TEST_CASE("A sequence as a policy is one lane, ranked by position, split as the sequence splits") {
  const auto hint = make_sequence_policy("mine", of({"F1", "F0", "BW1", "B0", "W0"}));
  CHECK(hint->name() == "mine");
  CHECK(hint->lanes() == 1);
  CHECK(hint->order({}).count == 1);
  CHECK(hint->backward_of(microbatch_id{0}, chunk_id{0}) == task_kind::backward);
  CHECK(hint->backward_of(microbatch_id{1}, chunk_id{0}) == task_kind::backward_weight);
  CHECK(hint->rank(*task_of("F1")) == 0);
  CHECK(hint->rank(*task_of("F0")) == 1);
  CHECK(hint->rank(*task_of("BW1")) == 2);
  CHECK(hint->rank(*task_of("W0")) == 4);
  CHECK(hint->lane_of(*task_of("W0")) == 0);
}

}  // namespace rrfp
