#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "program.hpp"
#include "small_session.hpp"

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::actors::test;
namespace fs = std::filesystem;
using rrfp::test::scratch_folder;

}  // namespace

TEST_CASE("a trace holds every task of every step, in order and without overlap") {
  const pipeline_shape shape{3, 1, 5, placement::linear};
  auto train = compute::test::small_train();
  train.steps = 2;
  auto setup =
      small_setup({shape, dispatch_mode::ready, "bfw", 6}, compute::test::small_model(), train);
  trace_recorder trace;
  setup.trace = &trace;
  const auto r = (*session::open(std::move(setup)))->run();
  REQUIRE(r.how == ending::done);
  CHECK(trace.records().tasks.size() == 2 * 3 * (5 * 3));

  const scratch_folder folder;
  const auto path = folder / "trace.json";
  REQUIRE(write_chrome_json(path, {{"a \"quoted\" run", &trace}}).ok());
  CHECK(std::distance(fs::directory_iterator{fs::path{path}.parent_path()}, {}) == 1);
  const auto json = nlohmann::json::parse(std::ifstream{path});
  std::map<int, double> last_end;
  std::size_t tasks = 0;
  std::size_t waits = 0;
  for (const auto& e : json.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    if (e.at("cat") == "wait") {
      ++waits;
      continue;
    }
    ++tasks;
    const auto begin = e.at("ts").get<double>();
    auto& end = last_end[e.at("pid").get<int>()];
    CHECK(begin >= end - 0.001);
    end = begin + e.at("dur").get<double>();
    CHECK(e.at("args").at("decided_us").get<double>() <= begin + 0.001);
    CHECK_FALSE(e.at("args").at("reason").get<std::string>().empty());
  }
  CHECK(tasks == 2 * 3 * (5 * 3));
  CHECK(waits > 0);
  CHECK(last_end.size() == 3);
}

TEST_CASE("a trace that cannot be written returns an error and leaves no file") {
  const trace_recorder trace;
  const auto written = write_chrome_json("/nonexistent/folder/trace.json", {{"x", &trace}});
  REQUIRE_FALSE(written.ok());
  CHECK(written.message().find("No such file") != std::string::npos);
}
