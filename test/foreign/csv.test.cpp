// CSV with a row for each task is a trace of anything.
#include <catch2/catch.hpp>

#include "hand_made.hpp"

namespace rrfp::foreign::testing {

TEST_CASE("columns of a CSV file come in any order, and others are ignored") {
  written files;
  files.add("tasks.csv",
            "kind,begin_ms,end_ms,note,stage,microbatch\n"
            "F,0,10,x,0,0\nF,12.5,20,,1,0\n\nBW,20,30,,1,0\nBW,31,45,,0,0\n");
  const auto found = files.run();
  CHECK(found.run.shape == pipeline_shape{2, 1, 1, placement::linear});
  CHECK(tasks_of(found, 0) == std::vector<std::string>{"F0 0-10", "BW0 31-45"});
  CHECK(tasks_of(found, 1) == std::vector<std::string>{"F0 12.5-20", "BW0 20-30"});
}

TEST_CASE("a row of a CSV file that is no task is refused with its line") {
  const auto refusal = [](const std::string& row) {
    written files;
    files.add("tasks.csv", "stage,microbatch,kind,start,end\n0,0,F,0,1\n" + row + "\n");
    return files.refusal();
  };
  CHECK(refusal("0,0,forward,1,2") == ":3: expected a kind F, B, W or BW, got \"forward\"");
  CHECK(refusal("0,0,BW,2,1").starts_with(":3: expected milliseconds"));
  CHECK(refusal("0,0,BW,1,nan").starts_with(":3: expected milliseconds"));
  CHECK(refusal("0,0,BW,1,5,2,5") == ":3: expected at most 5 cells, got \"0,0,BW,1,5,2,5\"");
  CHECK(refusal("-1,0,BW,1,2") == ":3: expected a whole number up to 4095, got \"-1\"");
  CHECK(refusal("0,1,F,1,2")
            .ends_with("got none of 1, the last one without BW0 of stage 0: record a whole step on "
                       "every rank"));
}

TEST_CASE("a CSV file may have a byte order mark, and times since 1970") {
  written files;
  files.add("tasks.csv",
            "\xef\xbb\xbfstage,microbatch,kind,start,end\n"
            "0,0,F,1700000000000,1700000000010\n0,0,BW,1700000000010,1700000000030.5\n");
  const auto found = files.run();
  CHECK(tasks_of(found, 0) == std::vector<std::string>{"F0 0-10", "BW0 10-30.5"});
}

}  // namespace rrfp::foreign::testing
