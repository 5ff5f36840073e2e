#include <catch2/catch.hpp>

#include <set>

#include <rrfp/experiment/limits.hpp>

#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

TEST_CASE("a small experiment gets the defaults") {
  const auto e = good("[[workload]]\nname = \"w\"\n[[run]]\n");
  CHECK(e.name == "x");
  CHECK(e.seeds == std::vector<std::uint64_t>{1, 2, 3});
  CHECK(e.steps == 3);
  CHECK(e.engines == std::vector{engine_kind::simulator});
  REQUIRE(e.runs.size() == 1);
  CHECK(e.runs[0].name == "bfw");
  CHECK(e.baseline == "bfw");
  REQUIRE(e.weathers.size() == 1);
  CHECK(e.weathers[0].name == "none");
  CHECK(e.cells() == 3);
}

TEST_CASE("lists in a run expand to one run for each combination, with distinct names") {
  const auto e = good(
      "[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\npolicy = [\"bf\", \"bfw\"]\n"
      "slots = [\"auto\", 3, \"1f1b\", \"none\"]\nrun_ahead = [0, 8]\n");
  CHECK(e.runs.size() == 16);
  std::set<std::string> names;
  for (const auto& r : e.runs) names.insert(r.name);
  CHECK(names.size() == 16);
  CHECK(names.contains("r bf slots auto D 0"));
  CHECK(names.contains("r bfw slots 3 D 8"));
  const auto& r = e.runs[e.run_index("r bf slots 1f1b D 8")];
  CHECK(r.slots == slots_of_1f1b);
  CHECK(r.run_ahead == 8);
}

TEST_CASE("the keys of a weather override its preset, wherever the preset stands") {
  const auto e = good(
      "[[workload]]\nname = \"w\"\n[[run]]\n[[weather]]\nprobability = 0.5\npreset = \"J2\"\n");
  CHECK(e.weathers[0].name == "J2");
  const auto& j = e.weathers[0].conditions.jitter;
  CHECK(j.compute == weather::compute_jitter::paper);
  CHECK(j.probability == 0.5);
  CHECK(j.floor_ms == 10);
}

TEST_CASE("cells go through seeds first, then runs, weathers and workloads") {
  const auto e = good(
      "seeds = [5, 6]\n[[workload]]\nname = \"a\"\n[[workload]]\nname = \"b\"\n"
      "[[run]]\npolicy = [\"bf\", \"bfw\"]\n[[weather]]\nname = \"none\"\n"
      "[[weather]]\npreset = \"J1\"\n");
  REQUIRE(e.cells() == 16);
  CHECK(cell_at(e, 0, engine_kind::simulator).seed == 5);
  CHECK(cell_at(e, 1, engine_kind::simulator).seed == 6);
  CHECK(cell_at(e, 2, engine_kind::simulator).run.policy == "bfw");
  CHECK(cell_at(e, 4, engine_kind::simulator).weather.name == "J1");
  CHECK(cell_at(e, 8, engine_kind::simulator).workload.options.name == "b");
  std::set<std::string> descriptions;
  // Workloads that differ only by name are the same cells.
  for (std::size_t i = 0; i < e.cells(); ++i)
    descriptions.insert(description_of(cell_at(e, i, engine_kind::simulator)));
  CHECK(descriptions.size() == 8);
}

TEST_CASE("engines and the time scale are read, and distinguish cells of the wall clock") {
  const std::string rest = "[[workload]]\nname = \"a\"\n[[run]]\n";
  CHECK(good(rest).engines == std::vector{engine_kind::simulator});
  const auto e = good("engine = \"both\"\ntime_scale = 0.5\n" + rest);
  CHECK(e.engines == std::vector{engine_kind::simulator, engine_kind::wall_clock});
  const auto simulated = description_of(cell_at(e, 0, engine_kind::simulator));
  CHECK(simulated == description_of(cell_at(good(rest), 0, engine_kind::simulator)));
  const auto clock = description_of(cell_at(e, 0, engine_kind::wall_clock));
  CHECK(clock != simulated);
  CHECK(clock !=
        description_of(cell_at(good("engine = \"both\"\n" + rest), 0, engine_kind::wall_clock)));
}

TEST_CASE("slots may be the number of stages, on every stage") {
  const auto e = good("[[workload]]\nname = \"a\"\n[[run]]\nslots = \"p\"\n");
  CHECK(e.runs[0].slots == slots_of_stages);
  const pipeline_shape shape{4, 1, 3, placement::linear};
  CHECK(limit_of(e.runs[0], shape, stage_id{3}).slots == 3);
  CHECK(limit_of(e.runs[0], {4, 1, 8, placement::linear}, stage_id{3}).slots == 4);
}

TEST_CASE("hints and late notices expand to separate runs with distinct names") {
  const auto e = good(
      "[[workload]]\nname = \"a\"\n[[run]]\nname = \"r\"\nhint = [\"own\", \"stale\"]\n"
      "notice_ms = [0, 2.5]\n");
  REQUIRE(e.runs.size() == 4);
  CHECK(e.runs[0].name == "r own notice 0.0 ms");
  CHECK(e.runs[3].name == "r stale notice 2.5 ms");
  CHECK(e.runs[3].hint == hint_quality::stale);
  CHECK(e.runs[3].notice_ms == 2.5);
}

TEST_CASE("a description holds everything that the outcome depends on, and no name") {
  const auto c = jittered_cell();
  auto other = c;
  other.workload.options.name = "renamed";
  other.run.name = "renamed";
  other.weather.name = "renamed";
  other.workload.paper.bfw = 3;
  CHECK(description_of(other) == description_of(c));
  const auto differs = [&](auto change) {
    auto changed = c;
    change(changed);
    return description_of(changed) != description_of(c);
  };
  CHECK(differs([](cell& x) { ++x.seed; }));
  CHECK(differs([](cell& x) { ++x.steps; }));
  CHECK(differs([](cell& x) { x.run.slots = slots_of_1f1b; }));
  CHECK(differs([](cell& x) { x.run.run_ahead = 3; }));
  CHECK(differs([](cell& x) { x.run.mode = run_mode::blocking; }));
  CHECK(differs([](cell& x) { x.run.admit = admission::large_first; }));
  CHECK(differs([](cell& x) { x.weather.conditions.stall_factor = 2; }));
  CHECK(differs([](cell& x) { x.weather.conditions.jitter.compute_sigma = 0.1; }));
  CHECK(differs([](cell& x) { x.workload.machine.efficiency = 0.4; }));
  CHECK(differs([](cell& x) { x.workload.images.mean = 1; }));
  CHECK(differs([](cell& x) { x.workload.cost.forward_ms = {2}; }));
}

TEST_CASE("a workload reads [cost] from its profile, relative to the experiment") {
  const scratch_file profile{"# recorded\n[cost]\nforward_ms = [1, 2]\nlink_ms = 0.5\n"};
  const std::filesystem::path path{profile.path()};
  const auto text = [](const std::string& cost) {
    return "[[workload]]\nname = \"w\"\nstages = 2\n" + cost + "[[run]]\n";
  };
  const auto e = parse_experiment(text("profile = \"" + path.filename().string() + "\"\n"),
                                  path.parent_path() / "x.toml");
  if (!e) FAIL(e.message());
  const auto& cost = e->workloads[0].cost;
  CHECK(cost.forward_ms == std::vector{1.0, 2.0});
  CHECK(cost.backward_ms == std::vector{1.0});
  CHECK(cost.link_ms == 0.5);
  // Equal times give the same cell, wherever they come from.
  const auto by_hand = good(text("cost.forward_ms = [1, 2]\ncost.link_ms = 0.5\n"));
  CHECK(description_of(cell_at(*e, 0, engine_kind::simulator)) ==
        description_of(cell_at(by_hand, 0, engine_kind::simulator)));
}

TEST_CASE("every key is in the reference") {
  const auto text = experiment_reference();
  for (const auto* key : {"seeds = [1, 2, 3]", "[[workload]]", "machine.tflops = 165.2",
                          "images.spread = \"uniform\"", "paper.bfw", "[[run]]", "slots = \"auto\"",
                          "[[weather]]", "stall_factor", "pause_ms"})
    CHECK(text.find(key) != std::string::npos);
}

}  // namespace rrfp::experiment
