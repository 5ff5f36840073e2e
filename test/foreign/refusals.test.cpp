// Files that are broken, cut off or foreign are refused in one line that names them.
#include <catch2/catch.hpp>

#include <filesystem>

#include <rrfp/io/stream_json.hpp>

#include "hand_made.hpp"

namespace rrfp::foreign::testing {
namespace {

using Catch::Matchers::Contains;

std::string whole() {
  return profiled{rank_members(0)}.named("PP:0F0", 0, 1).named("PP:0B0", 1, 2).text();
}

std::string refusal_of(const std::string& text) {
  written files;
  files.add("rank0.json", text);
  return files.refusal();
}

}  // namespace

TEST_CASE("a file that is no trace is refused") {
  CHECK_THAT(refusal_of(""), Contains("got an empty file"));
  CHECK_THAT(refusal_of("hello"), Contains("expected a trace of rrfp-node run --trace"));
  CHECK_THAT(refusal_of("{}"), Contains("expected a trace of rrfp-node run --trace"));
  CHECK_THAT(refusal_of(R"({"schemaVersion":1})"), Contains("JSON without \"traceEvents\""));
  CHECK_THAT(refusal_of(profiled{}.op("aten::mm", 0, 1).text()),
             Contains("expected tasks of a pipe"));
  CHECK_THAT(refusal_of(profiled{rank_members(0)}.named("PP:(0F1;1B0)OVERLAP_F_B", 0, 1).text()),
             Contains("DualPipeV"));
}

TEST_CASE("a trace that is cut off or nested too deep is refused wherever it is cut") {
  const auto text = whole();
  for (std::size_t size = 90; size + 2 < text.size(); size += 7)
    CHECK_THAT(refusal_of(text.substr(0, size)), Contains("JSON that ends too early"));
  CHECK_THAT(refusal_of("{\"schemaVersion\":" + std::string(100'000, '[')),
             Contains("nested deeper than 64"));
  CHECK_THAT(refusal_of("{\"schemaVersion\":tru, \"traceEvents\":[]}"),
             Contains("text that is not JSON"));
}

TEST_CASE("a gzip file that is cut off is refused") {
  written files;
  const auto name = files.add_compressed("rank0.json.gz", whole());
  std::filesystem::resize_file(name, std::filesystem::file_size(name) / 2);
  CHECK_THAT(files.refusal(), Contains("a gzip file that ends too early"));
}

TEST_CASE("a text longer than the limit ends the parse before it fills memory") {
  for (const auto& text : {'"' + std::string(1000, 'x') + '"', std::string(1000, '7'),
                           std::string(1000, ' '), std::string(1000, '\n')}) {
    test::scratch_folder folder;
    std::ofstream{folder / "x"} << "[" << text << "]";
    auto source = io::byte_source::open(folder / "x");
    REQUIRE(source.ok());
    json_events_base events;
    const auto fault = stream_json(*source, events, {.text_bytes_max = 100});
    REQUIRE(fault);
    CHECK(fault->reason == "a text, number or blanks longer than 100 bytes");
  }
}

TEST_CASE("ranks that do not make a pipeline are refused") {
  const auto rank = [](int number, int stage) {
    return profiled{rank_members(number)}
        .named(fmt::format("PP:{}F0", stage), 0, 1)
        .named(fmt::format("PP:{}B0", stage), 1, 2)
        .text();
  };
  {
    written files;
    files.add("a.json", rank(0, 0));
    files.add("b.json", rank(0, 1));
    CHECK_THAT(files.refusal(), Contains("expected one trace of each rank, got rank 0 also in"));
  }
  written files;
  files.add("a.json", rank(0, 0));
  files.add("b.json", rank(1, 2));
  CHECK_THAT(files.refusal(), Contains("linear, interleaved or V"));
}

}  // namespace rrfp::foreign::testing
