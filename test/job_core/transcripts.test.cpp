/// RRFP_REWRITE=1 job_core_unit    rewrites the transcripts; the difference is the review
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <catch2/catch.hpp>

#include "transcript.hpp"

namespace rrfp::testing {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream{file}.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("The job core answers every event of a transcript with the actions that follow it") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator{RRFP_TESTDATA}) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 10);
  for (const auto& file : files) {
    INFO(file);
    const auto text = content_of(file);
    const auto actual = replayed(text);
    CHECK(actual.find("  error: ") == std::string::npos);
    if (std::getenv("RRFP_REWRITE") != nullptr)
      std::ofstream{file} << actual;
    else
      CHECK(actual == text);
  }
}

TEST_CASE("A line that is not an event is answered with what was expected") {
  CHECK(replayed("job stages 1\nhello\n") ==
        "job stages 1\nhello\n  error: unknown event 'hello'\n");
  CHECK(replayed("job stages 1\ndemanded tea\n") ==
        "job stages 1\ndemanded tea\n  error: unknown word 'tea'\n");
  CHECK(replayed("job depth 1\n") == "job depth 1\n  error: unknown option 'depth'\n");
}

}  // namespace rrfp::testing
