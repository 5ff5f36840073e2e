/// Simulated times of the shipped experiments do not change by accident.
#include <catch2/catch.hpp>

#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

TEST_CASE("cells of every shipped experiment take the recorded time, to the nanosecond") {
  std::ifstream recorded{RRFP_SOURCE "/test/experiment/testdata/outcomes.txt"};
  std::map<std::string, experiment> experiments;
  std::size_t compared = 0;
  for (std::string line; std::getline(recorded, line);) {
    if (line.starts_with("#")) continue;
    INFO(line);
    std::istringstream words{line};
    std::string file, mean_ms;
    std::size_t number = 0;
    words >> file >> number >> mean_ms;
    if (!experiments.contains(file)) {
      auto e = load_experiment(RRFP_SOURCE "/" + file);
      REQUIRE(e.ok());
      experiments.emplace(file, std::move(*e));
    }
    const auto o = run_well(cell_at(experiments.at(file), number, engine_kind::simulator));
    CHECK(fmt::format("{:.6f}", o.mean_ms()) == mean_ms);
    ++compared;
  }
  CHECK(experiments.size() >= 15);
  CHECK(compared >= 100);
}

}  // namespace rrfp::experiment
