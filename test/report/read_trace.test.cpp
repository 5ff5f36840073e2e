// A trace is restored as written; anything else is refused with a reason in one line.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

using Catch::Matchers::Contains;

std::string refusal(const std::string& text) {
  const auto read = parse_trace(text, "some.json");
  REQUIRE_FALSE(read.ok());
  CHECK(std::count(read.message().begin(), read.message().end(), '\n') == 0);
  CHECK_THAT(read.message(), Catch::Matchers::StartsWith("some.json:"));
  CHECK_THAT(read.message(), Contains("expected a trace of rrfp-node run --trace"));
  return read.message();
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const auto at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

}  // namespace

TEST_CASE("tasks and waits are restored with every detail") {
  const auto file = parse_trace(hand_made{}
                                    .run("a run: of stage 7", 3)
                                    .wait(1, "memory", "F2.1", 3, 8, 5)
                                    .task(1, "BW2.1", 8, 9, 20,
                                          {.rank = 1,
                                           .step = 5,
                                           .seq = 7,
                                           .delay = 4,
                                           .slots = 3,
                                           .bytes = 99,
                                           .reason = "memory_bound",
                                           .skipped = 2})
                                    .text(17),
                                "x");
  REQUIRE(file.ok());
  CHECK(file->dropped == 17);
  REQUIRE(file->runs.size() == 1);
  const auto& run = file->runs[0];
  CHECK(run.title == "a run: of stage 7");
  CHECK(run.ranks == 2);
  CHECK(run.shape == pipeline_shape{2, 2, 3, placement::interleaved});
  REQUIRE(run.tasks.size() == 1);
  const auto& t = run.tasks[0];
  CHECK(t.stage == stage_id{1});
  CHECK(t.rank == rank_id{1});
  CHECK(t.step == step_id{5});
  CHECK(t.seq == launch_seq{7});
  CHECK(to_string(t.what) == "BW2.1");
  CHECK(t.why == reason{choice::memory_bound, 2});
  CHECK(t.decided == us(8));
  CHECK(t.begin == us(9));
  CHECK(t.end == us(20));
  CHECK(t.delay == us(4));
  CHECK(t.slots == 3);
  CHECK(t.bytes == 99);
  REQUIRE(run.waits.size() == 1);
  CHECK(run.waits[0].what == wait{wait_cause::memory, *task_of("F2.1")});
  CHECK(run.waits[0].end == us(8));
}

TEST_CASE("a task that jitter made faster has a negative delay") {
  const auto file =
      parse_trace(hand_made{}.run("r", 1).task(0, "F0", 1, 2, 9, {.delay = -4}).text(), "x");
  REQUIRE(file.ok());
  CHECK(file->runs[0].tasks[0].delay == us(-4));
}

TEST_CASE("runs are separated, and replicas of one run are merged") {
  hand_made t;
  t.run("one", 1).task(0, "F0", 0, 0, 5);
  t.run("other", 1).task(0, "F0", 0, 0, 6);
  t.run("other", 1).task(0, "F0", 0, 0, 7);
  t.run("no task", 1);
  t.run("copies", 0);
  t.process(4, "copies: replica 0 stage 0").process(5, "copies: replica 1 stage 0");
  t.task(0, "F0", 0, 0, 8).task(1, "F0", 0, 0, 9);
  const auto file = t.read();
  REQUIRE(file.runs.size() == 4);
  CHECK(file.runs[1].title == "other");
  CHECK(file.runs[2].tasks[0].end == us(7));
  CHECK(file.runs[3].replicas == 2);
  CHECK(file.runs[3].shape.stages == 1);
  CHECK(file.runs[3].tasks[1].replica == replica_id{1});
}

TEST_CASE("a trace that is truncated anywhere is refused") {
  const auto whole = two_stages().text();
  CHECK_THAT(refusal(""), Contains("got an empty file"));
  CHECK_THAT(refusal("   \n"), Contains("some.json:2: ") && Contains("ends too early"));
  for (std::size_t size = 1; size + 3 < whole.size(); size += 7) {
    INFO(size);
    CHECK_THAT(refusal(whole.substr(0, size)), Contains("ends too early"));
  }
}

TEST_CASE("a file that is not a trace of rrfp is refused, and the error names what came") {
  const auto good = two_stages().text();
  CHECK_THAT(refusal("step,stage\n0,0\n"), Contains("some.json:1: ") && Contains("not JSON"));
  CHECK_THAT(refusal("{\"traceEvents\": [\n{\"ph\": " + std::string(100'000, '[') +
                     std::string(100'000, ']') + "}]}"),
             Contains("some.json:2: ") && Contains("nested deeper than 64"));
  CHECK_THAT(refusal("[]"), Contains("without \"traceEvents\""));
  CHECK_THAT(refusal("7"), Contains("without \"traceEvents\""));
  CHECK_THAT(refusal("{\"loss\": 3}"), Contains("without \"traceEvents\""));
  CHECK_THAT(refusal("{\"traceEvents\": []}"), Contains("got one without tasks"));
  CHECK_THAT(refusal("{\"traceEvents\": [7]}"), Contains("event 1: expected an event, got 7"));
  CHECK_THAT(refusal(hand_made{}.run("idle", 2).text()), Contains("without tasks"));
  CHECK_THAT(refusal(hand_made{}.process(0, "python").text()),
             Contains("event 1: ") && Contains("got \"python\""));
  CHECK_THAT(refusal(hand_made{}.process(0, "x: stage 1000000").text()), Contains("stage 0"));
  CHECK_THAT(refusal(replaced(good, "\"ph\":\"X\"", "\"ph\":\"B\"")), Contains("got \"B\""));
  CHECK_THAT(refusal(replaced(good, "\"name\":\"F0\"", "\"name\":\"aten::mm\"")),
             Contains("got \"aten::mm\""));
  CHECK_THAT(refusal(replaced(good, "\"seq\":0,", "")), Contains("expected \"seq\", got none"));
  CHECK_THAT(refusal(replaced(good, "\"seq\":0,", "\"seq\":-1,")), Contains("got -1"));
  CHECK_THAT(refusal(replaced(good, "\"step\":0", "\"step\":\"x\"")), Contains("got \"x\""));
  CHECK_THAT(refusal(replaced(good, "only_choice", "a whim")), Contains("got \"a whim\""));
  CHECK_THAT(refusal(replaced(good, "\"ts\":2.000", "\"ts\":-2.000")), Contains("got -2.0"));
  CHECK_THAT(refusal(replaced(good, "\"ts\":2.000", "\"ts\":1e300")), Contains("got 1e+300"));
  CHECK_THAT(refusal(replaced(good, "\"ts\":12.000", "\"ts\":11.000")),
             Contains("stage 0 rank 0") && Contains("F0 and F1 of step 0 overlapping"));
}

TEST_CASE("a trace may be compressed") {
  const auto plain = (std::filesystem::temp_directory_path() / "rrfp-compressed.json").string();
  const auto text = two_stages().text();
  std::ofstream{plain} << text;
  REQUIRE(std::system(("gzip -kf " + plain).c_str()) == 0);
  const auto whole = read_trace(plain + ".gz");
  REQUIRE(whole.ok());
  CHECK(whole->runs.size() == parse_trace(text, plain)->runs.size());
  std::filesystem::resize_file(plain + ".gz", std::filesystem::file_size(plain + ".gz") - 9);
  CHECK_THAT(read_trace(plain + ".gz").message(), Contains("a gzip file that ends too early"));
  std::filesystem::remove(plain);
  std::filesystem::remove(plain + ".gz");
}

TEST_CASE("a file that cannot be read is refused") {
  const auto absent = read_trace("/nonexistent/trace.json");
  REQUIRE_FALSE(absent.ok());
  CHECK_THAT(absent.message(), Contains("/nonexistent/trace.json") && Contains("No such file"));
  const auto folder = read_trace("/tmp");
  REQUIRE_FALSE(folder.ok());
  CHECK_THAT(folder.message(), Contains("got a folder"));
  const auto loop = (std::filesystem::temp_directory_path() / "rrfp-loop.json").string();
  std::filesystem::remove(loop);
  std::filesystem::create_symlink(loop, loop);
  const auto endless = read_trace(loop);
  std::filesystem::remove(loop);
  REQUIRE_FALSE(endless.ok());
  CHECK_THAT(endless.message(), Contains("Too many levels of symbolic links"));
}

}  // namespace rrfp::report::testing
