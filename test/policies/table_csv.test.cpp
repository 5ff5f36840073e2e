#include <catch2/catch.hpp>

#include <rrfp/policies/table_csv.hpp>

#include "support.hpp"

using namespace rrfp;
using namespace rrfp::policies;
using namespace rrfp::policies::testing;

namespace {

std::string refusal_of_table(std::string_view text, const pipeline_shape& shape) {
  const auto read = read_csv(text, shape, "table.csv");
  return read ? "" : read.message();
}

std::vector<std::string> orders(std::string_view text, const pipeline_shape& shape) {
  const auto read = read_csv(text, shape, "table.csv");
  INFO((read ? "" : read.message()));
  REQUIRE(read.ok());
  std::vector<std::string> texts;
  for (const auto& order : *read) texts.push_back(text_of(order));
  return texts;
}

}  // namespace

TEST_CASE("a table is written with virtual stages, one row per stage") {
  const auto shape = folded(2, 1);
  CHECK(write_csv(sequences_of("zb_v", shape), shape) ==
        "0F0,3F0,3I0,3W0,0I0,0W0\n"
        "1F0,2F0,2I0,2W0,1I0,1W0\n");
  const auto plain = linear(2, 1);
  CHECK(write_csv(sequences_of("gpipe", plain), plain) == "0F0,0B0\n1F0,1B0\n");
}

TEST_CASE("every schedule survives writing and reading") {
  for (const auto& [name, shape] : accepted_cases(4, 3, 9)) {
    const auto sequences = sequences_of(name, shape);
    const auto read = read_csv(write_csv(sequences, shape), shape, name);
    INFO(name << ": " << (read ? "" : read.message()));
    REQUIRE(read.ok());
    CHECK(*read == sequences);
  }
}

TEST_CASE("PyTorch's empty cells and line ends are read") {
  // Interleaved 1F1B on 2 ranks with 2 stages each, 2 microbatches, as csv.writer writes it.
  const auto* text =
      "0F0,0F1,2F0,2F1,,2B0,,2B1,,0B0,,0B1\r\n"
      ",1F0,1F1,3F0,3B0,3F1,3B1,,1B0,,1B1\r\n";
  CHECK(orders(text, interleaved(2, 2, 2)) ==
        std::vector<std::string>{"F0 F1 F0.1 F1.1 BW0.1 BW1.1 BW0 BW1",
                                 "F0 F1 F0.1 BW0.1 F1.1 BW1.1 BW0 BW1"});
}

TEST_CASE("PyTorch's pairs of overlapping tasks are read as two tasks, and give DualPipeV") {
  const auto shape = folded(2, 4);
  const auto* text =
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
      "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\r\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,"
      "1B2,2I3,1I3,2W3,1W3\r\n";
  const auto read = read_csv(text, shape, "table.csv");
  REQUIRE(read.ok());
  CHECK(*read == sequences_of("dualpipe_v", shape));
}

TEST_CASE("blanks, quotes and empty lines do not matter, nor does a missing last line end") {
  CHECK(orders(" 0F0 ,\t\"0B0\",\"\",\n\n \r\n1F0,1B0", linear(2, 1)) ==
        std::vector<std::string>{"F0 BW0", "F0 BW0"});
}

TEST_CASE("a cell that is not a task of the row is refused with line, cell and what was expected") {
  const auto shape = folded(2, 3);
  const std::string no_task =
      "expected a compute task like 0F3 (virtual stage; F, I, W or B; microbatch), got ";
  const std::string good = "0F0,3F0\n";
  CHECK(refusal_of_table(good + "1F0,,2X0\n", shape) ==
        "table.csv:2: cell 3: " + no_task + "\"2X0\"");
  CHECK(refusal_of_table("F0\n", shape) == "table.csv:1: cell 1: " + no_task + "\"F0\"");
  CHECK(refusal_of_table("0\n", shape) == "table.csv:1: cell 1: " + no_task + "\"0\"");
  CHECK(refusal_of_table("0F\n", shape) == "table.csv:1: cell 1: " + no_task + "\"0F\"");
  CHECK(refusal_of_table("0F1x\n", shape) == "table.csv:1: cell 1: " + no_task + "\"0F1x\"");
  CHECK(refusal_of_table("-1F0\n", shape) == "table.csv:1: cell 1: " + no_task + "\"-1F0\"");
  CHECK(refusal_of_table("0F4294967296\n", shape) ==
        "table.csv:1: cell 1: " + no_task + "\"0F4294967296\"");
  CHECK(refusal_of_table("0SEND_F0\n", shape) ==
        "table.csv:1: cell 1: " + no_task + "\"0SEND_F0\"");
  CHECK(refusal_of_table("(0F0;3X0)OVERLAP_F_B\n", shape) ==
        "table.csv:1: cell 1: " + no_task + "\"(0F0;3X0)OVERLAP_F_B\"");
  CHECK(refusal_of_table("0F0;3F0\n", shape) == "table.csv:1: cell 1: " + no_task + "\"0F0;3F0\"");
}

TEST_CASE("a task outside the job or of another stage is refused") {
  const auto shape = folded(2, 3);
  CHECK(refusal_of_table("4F0\n", shape) ==
        "table.csv:1: cell 1: expected a virtual stage below 4, got \"4F0\"");
  CHECK(refusal_of_table("0F0,2F0\n", shape) ==
        "table.csv:1: cell 2: expected a virtual stage of stage 0 (virtual stage 2 is on stage 1), "
        "got \"2F0\"");
  CHECK(refusal_of_table("0F2,0F3\n", shape) ==
        "table.csv:1: cell 2: expected a microbatch below 3, got \"0F3\"");
}

TEST_CASE("too few or too many rows are refused") {
  CHECK(refusal_of_table("", linear(2, 1)) == "table.csv: expected 2 rows, one per stage, got 0");
  CHECK(refusal_of_table("0F0,0B0\n", linear(2, 1)) ==
        "table.csv: expected 2 rows, one per stage, got 1");
  CHECK(refusal_of_table("0F0\n\n1F0\n0F0\n", linear(2, 1)) ==
        "table.csv:4: expected 2 rows, one per stage, got another row");
}

TEST_CASE("an impossible shape is refused") {
  CHECK(refusal_of_table("0F0\n", {1, 3, 1, placement::v}) ==
        "placement v: expected chunks = 2, got 3");
}
