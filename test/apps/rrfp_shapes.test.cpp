// rrfp-shapes writes a data set and prints its path; bad input gets one line and exit code 2.
#include <catch2/catch.hpp>

#include <algorithm>

#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("rrfp-shapes writes lines and pictures; the same arguments give the same files") {
  const scratch_folder folder;
  const auto first = folder / "first";
  const auto o = run_program({RRFP_SHAPES, first, "--samples", "20", "--seed", "3"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(o.out == "20 samples: " + first + "/train.jsonl\n");
  const auto lines = text_of(first + "/train.jsonl");
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 20);
  CHECK(count_files(first + "/images") > 10);
  REQUIRE(run_program({RRFP_SHAPES, folder / "again", "--samples", "20", "--seed", "3"}).code == 0);
  CHECK(text_of(folder / "again/train.jsonl") == lines);
  REQUIRE(run_program({RRFP_SHAPES, folder / "other", "--samples", "20", "--seed", "4"}).code == 0);
  CHECK(text_of(folder / "other/train.jsonl") != lines);
}

TEST_CASE("rrfp-shapes refuses bad input") {
  const scratch_folder folder;
  std::ofstream{folder / "file"} << "x";
  const auto check = [&](std::vector<std::string> arguments, const std::string& expected) {
    arguments.insert(arguments.begin(), RRFP_SHAPES);
    const auto o = run_program(arguments);
    INFO(o.err);
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Contains(expected));
  };
  check({folder / ""}, "expected an empty folder");
  check({folder / "file"}, "expected a folder, got a file");
  check({"/proc/shapes"}, "/proc/shapes: cannot be created");
  check({folder / "new", "--samples", "0"}, "--samples");
  check({folder / "new", "--patch", "0"}, "--patch");
  check({}, "folder");
  CHECK(count_files(folder / "") == 1);
  const auto help = run_program({RRFP_SHAPES, "--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.out, Contains("--samples") && Contains("--seed") && Contains("--patch"));
}
