#include <catch2/catch.hpp>

#include <rrfp/core/sequence.hpp>

#include "support.hpp"

using namespace rrfp;
using namespace rrfp::policies::testing;

namespace {

/// The order of one stage as text.
std::string order(std::string_view name, const pipeline_shape& shape, std::uint32_t stage) {
  return text_of(sequences_of(name, shape).at(stage));
}

}  // namespace

TEST_CASE("gpipe runs every F, then every BW") {
  for (std::uint32_t s = 0; s < 2; ++s)
    CHECK(order("gpipe", linear(2, 3), s) == "F0 F1 F2 BW0 BW1 BW2");
}

TEST_CASE("1F1B warms up with one F for each later stage") {
  const auto shape = linear(3, 4);
  CHECK(order("one_f_one_b", shape, 0) == "F0 F1 F2 BW0 F3 BW1 BW2 BW3");
  CHECK(order("one_f_one_b", shape, 1) == "F0 F1 BW0 F2 BW1 F3 BW2 BW3");
  CHECK(order("one_f_one_b", shape, 2) == "F0 BW0 F1 BW1 F2 BW2 F3 BW3");
}

TEST_CASE("1F1B with fewer microbatches than stages only warms up on the first stages") {
  const auto shape = linear(4, 2);
  CHECK(order("one_f_one_b", shape, 0) == "F0 F1 BW0 BW1");
  CHECK(order("one_f_one_b", shape, 1) == "F0 F1 BW0 BW1");
  CHECK(order("one_f_one_b", shape, 2) == "F0 F1 BW0 BW1");
  CHECK(order("one_f_one_b", shape, 3) == "F0 BW0 F1 BW1");
}

TEST_CASE("interleaved 1F1B visits the chunks group by group, BW in reverse order") {
  const auto shape = interleaved(2, 2, 4);
  CHECK(order("interleaved_1f1b", shape, 0) ==
        "F0 F1 F0.1 F1.1 F2 BW0.1 F3 BW1.1 F2.1 BW0 F3.1 BW1 BW2.1 BW3.1 BW2 BW3");
  CHECK(order("interleaved_1f1b", shape, 1) ==
        "F0 F1 F0.1 BW0.1 F1.1 BW1.1 F2 BW0 F3 BW1 F2.1 BW2.1 F3.1 BW3.1 BW2 BW3");
}

TEST_CASE("interleaved 1F1B spreads a remainder over the groups") {
  // 5 microbatches on 2 stages: groups of 3 and 2.
  CHECK(order("interleaved_1f1b", interleaved(2, 2, 5), 1) ==
        "F0 F1 F2 F0.1 BW0.1 F1.1 BW1.1 F2.1 BW2.1 F3 BW0 F4 BW1 F3.1 BW2 F4.1 BW3.1 BW4.1 BW3 "
        "BW4");
}

TEST_CASE("ZB-H1 delays W by the number of the stage") {
  const auto shape = linear(3, 4);
  CHECK(order("zb_h1", shape, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  CHECK(order("zb_h1", shape, 1) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3");
  CHECK(order("zb_h1", shape, 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
}

TEST_CASE("ZB-H2 warms up twice as far and keeps W for the end") {
  const auto shape = linear(2, 5);
  CHECK(order("zb_h2", shape, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4");
  CHECK(order("zb_h2", shape, 1) == "F0 B0 W0 F1 B1 W1 F2 B2 F3 B3 F4 B4 W2 W3 W4");
}

TEST_CASE("ZB-V keeps both chunks busy") {
  const auto shape = folded(2, 3);
  CHECK(order("zb_v", shape, 0) ==
        "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 B0 W0 F2.1 B2.1 W2.1 B1 W1 B2 W2");
  CHECK(order("zb_v", shape, 1) ==
        "F0 F0.1 F1 F1.1 B0.1 W0.1 F2 B0 W0 F2.1 B1.1 W1.1 B1 B2.1 B2 W1 W2.1 W2");
}

TEST_CASE("ZB-V's last stage keeps W for the end, chunk 1 first") {
  CHECK(order("zb_v", folded(3, 5), 2) ==
        "F0 F0.1 F1 F1.1 F2 F2.1 B0.1 W0.1 F3 B0 W0 F3.1 B1.1 W1.1 F4 B1 W1 F4.1 B2.1 W2.1 B2 "
        "B3.1 B3 B4.1 B4 W2 W3.1 W4.1 W3 W4");
}

TEST_CASE("ZB-V drops the microbatches of its pattern that exceed the step's") {
  for (std::uint32_t s = 0; s < 2; ++s)
    CHECK(order("zb_v", folded(2, 1), s) == "F0 F0.1 B0.1 W0.1 B0 W0");
  // W follows its B at once: the B after which it would be deferred are among those dropped.
  CHECK(order("zb_v", folded(3, 3), 2) ==
        "F0 F0.1 F1 F1.1 F2 F2.1 B0.1 W0.1 B0 W0 B1.1 W1.1 B1 W1 B2.1 W2.1 B2 W2");
}

TEST_CASE("DualPipeV pairs F with the BW of another microbatch and splits W off at the end") {
  const auto shape = folded(2, 4);
  CHECK(order("dualpipe_v", shape, 0) ==
        "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 F3 BW1.1 F2.1 BW0 BW2.1 F3.1 BW1 BW3.1 B2 W2 B3 W3");
  CHECK(order("dualpipe_v", shape, 1) ==
        "F0 F0.1 F1 F1.1 F2 BW0.1 F2.1 BW0 F3 BW1.1 F3.1 BW1 BW2.1 BW2 B3.1 B3 W3.1 W3");
}

TEST_CASE("DualPipeV splits within a microbatch if the number of split backwards is odd") {
  // Stage 2 of 3 ends with three pairs of backwards, of which three tasks are split.
  const auto text = order("dualpipe_v", folded(3, 6), 2);
  const std::string tail = "BW3.1 BW3 BW4.1 B4 B5.1 B5 W4 W5.1 W5";
  CHECK(text.substr(text.size() - tail.size()) == tail);
}

TEST_CASE("DualPipeV runs the oldest split W first, whatever its chunk") {
  const auto text = order("dualpipe_v", folded(3, 6), 1);
  const std::string tail = "BW4.1 BW3 B5.1 B4 W5.1 B5 W4 W5";
  CHECK(text.substr(text.size() - tail.size()) == tail);
}

TEST_CASE("a single stage runs every schedule") {
  CHECK(order("one_f_one_b", linear(1, 2), 0) == "F0 BW0 F1 BW1");
  CHECK(order("zb_h1", linear(1, 2), 0) == "F0 B0 W0 F1 B1 W1");
  CHECK(order("zb_h2", linear(1, 2), 0) == "F0 B0 W0 F1 B1 W1");
  CHECK(order("interleaved_1f1b", interleaved(1, 2, 2), 0) ==
        "F0 F0.1 BW0.1 F1 BW0 F1.1 BW1.1 BW1");
  CHECK(order("zb_v", folded(1, 2), 0) == "F0 F0.1 B0.1 W0.1 F1 B0 W0 F1.1 B1.1 W1.1 B1 W1");
  CHECK(order("dualpipe_v", folded(1, 2), 0) == "F0 F0.1 F1 BW0.1 F1.1 BW0 BW1.1 B1 W1");
}

TEST_CASE("every schedule is complete and ends, for all sizes") {
  for (const auto& [name, shape] : accepted_cases(9, 4, 29)) {
    const auto feasible = check_sequences(shape, sequences_of(name, shape));
    INFO(name << " p = " << shape.stages << " v = " << shape.chunks << " m = " << shape.microbatches
              << ": " << (feasible ? "" : feasible.message()));
    CHECK(feasible.ok());
  }
}
