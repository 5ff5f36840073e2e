#include <catch2/catch.hpp>

#include <set>

#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

namespace {

cell first_cell(const experiment& e) { return cell_at(e, 0, engine_kind::simulator); }

}  // namespace

TEST_CASE("a small experiment gets the defaults") {
  const auto e = good("[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  CHECK(e.name == "x");
  CHECK(e.seeds == std::vector<std::uint32_t>{1, 2, 3});
  CHECK(e.steps == 3);
  CHECK(e.engines == std::vector{engine_kind::simulator});
  REQUIRE(e.runs.size() == 1);
  CHECK(e.baseline == "r");
  CHECK(first_cell(e).job.dispatch.policy == "bfw_plus");
  REQUIRE(e.weathers.size() == 1);
  CHECK(e.weathers[0].name == "none");
  CHECK(e.cells() == 3);
}

TEST_CASE("keys before the first table are the base of every cell, and the tables change it") {
  const auto e = good(
      "pipeline.stages = 8\ntrain.steps = 2\n[dispatch]\nslots = 5\n[[workload]]\nname = \"a\"\n"
      "[[workload]]\nname = \"b\"\npipeline.stages = 2\n[[run]]\ndispatch.policy = \"bf\"\n"
      "[[run]]\nname = \"more\"\ndispatch.slots = 6\n[[weather]]\njitter.level = \"J1\"\n");
  CHECK(e.steps == 2);
  const auto at = [&](std::size_t number) {
    return cell_at(e, number, engine_kind::simulator).job;
  };
  CHECK(at(0).pipeline.stages == 8);
  CHECK(at(0).dispatch.policy == "bf");
  CHECK(at(0).dispatch.slots == 5);
  CHECK(at(0).jitter.probability == 0.1);
  CHECK(at(0).train.steps == 2);
  CHECK(at(3).dispatch.slots == 6);
  CHECK(at(3).dispatch.policy == "bfw_plus");
  CHECK(at(6).pipeline.stages == 2);
}

TEST_CASE("a job file may be the base; the experiment's own keys override it") {
  const scratch_file base{
      "[pipeline]\nstages = 6\nmicrobatches = 12\n[dispatch]\npolicy = \"bf\"\n"
      "[model]\nlayers = 12\n[train]\nsteps = 4\n[device]\ntime_scale = 2\n"};
  const auto e = good("job = \"" + base.path() +
                      "\"\npipeline.microbatches = 9\n[[workload]]\nname = \"w\"\n"
                      "[[run]]\nname = \"r\"\n");
  const auto c = first_cell(e);
  CHECK(c.job.pipeline.stages == 6);
  CHECK(c.job.pipeline.microbatches == 9);
  CHECK(c.job.dispatch.policy == "bf");
  CHECK(e.steps == 4);
  CHECK(e.time_scale == 2);
  // What does not change an outcome is not part of a cell.
  CHECK(description_of(c).find("model.layers") == std::string::npos);
}

TEST_CASE("lists expand an entry to one for each combination, with distinct names") {
  const auto e = good(
      "[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\ndispatch.policy = [\"bf\", \"bfw\"]\n"
      "dispatch.slots = [\"auto\", 3, \"1f1b\", \"none\"]\ndispatch.lookahead = [0, 8]\n");
  CHECK(e.runs.size() == 16);
  std::set<std::string> names;
  for (const auto& r : e.runs) names.insert(r.name);
  CHECK(names.size() == 16);
  CHECK(names.contains("r bf slots auto lookahead 0"));
  CHECK(names.contains("r bfw slots 3 lookahead 8"));
  const auto number = e.run_index("r bf slots 1f1b lookahead 8") * e.seeds.size();
  const auto c = cell_at(e, number, engine_kind::simulator);
  CHECK(c.job.dispatch.slots == job::slots_of_1f1b);
  CHECK(c.job.dispatch.lookahead == 8);
}

TEST_CASE("a list stays whole for a key that takes one") {
  const auto e = good(
      "[[workload]]\nname = \"w\"\npipeline.stages = 2\ncost.forward_ms = [1, 2]\n"
      "pipeline.microbatches = [4, 8]\n[[run]]\nname = \"r\"\n");
  REQUIRE(e.workloads.size() == 2);
  CHECK(e.workloads[1].name == "w microbatches 8");
  CHECK(e.workloads[1].job.cost.forward_ms == std::vector{1.0, 2.0});
}

TEST_CASE("an entry without a name takes the words among its values") {
  const auto e = good(
      "[[workload]]\ncost.preset = \"gpt3-large\"\n[[run]]\ndispatch.policy = [\"bf\", \"fb\"]\n"
      "dispatch.run_ahead = 32\n[[weather]]\njitter.level = \"measured\"\n");
  CHECK(e.workloads[0].name == "gpt3-large");
  CHECK(e.runs[0].name == "bf");
  CHECK(e.runs[1].name == "fb");
  CHECK(e.weathers[0].name == "measured");
}

TEST_CASE("the keys of a weather override its level, wherever the level stands") {
  const auto e = good(
      "[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n[[weather]]\njitter.probability = 0.5\n"
      "jitter.level = \"J2\"\n");
  CHECK(e.weathers[0].name == "J2");
  const auto& j = first_cell(e).job.jitter;
  CHECK(j.compute == simulate::compute_jitter::paper);
  CHECK(j.probability == 0.5);
  CHECK(j.floor_ms == 10);
}

TEST_CASE("cells go through seeds first, then runs, weathers and workloads") {
  const auto e = good(
      "seeds = [5, 6]\n[[workload]]\nname = \"a\"\n[[workload]]\nname = \"b\"\n"
      "[[run]]\ndispatch.policy = [\"bf\", \"bfw\"]\n[[weather]]\nname = \"none\"\n"
      "[[weather]]\njitter.level = \"J1\"\n");
  REQUIRE(e.cells() == 16);
  CHECK(cell_at(e, 0, engine_kind::simulator).job.jitter.seed == 5);
  CHECK(cell_at(e, 1, engine_kind::simulator).job.jitter.seed == 6);
  CHECK(cell_at(e, 2, engine_kind::simulator).job.dispatch.policy == "bfw");
  CHECK(cell_at(e, 4, engine_kind::simulator).weather == "J1");
  CHECK(cell_at(e, 8, engine_kind::simulator).workload == "b");
  std::set<std::string> descriptions;
  // Workloads that differ only by name are the same cells.
  for (std::size_t i = 0; i < e.cells(); ++i)
    descriptions.insert(description_of(cell_at(e, i, engine_kind::simulator)));
  CHECK(descriptions.size() == 8);
}

TEST_CASE("engines and the time scale are read, and distinguish cells of the wall clock") {
  const std::string rest = "[[workload]]\nname = \"a\"\n[[run]]\nname = \"r\"\n";
  CHECK(good(rest).engines == std::vector{engine_kind::simulator});
  const auto e = good("engine = \"both\"\ndevice.time_scale = 0.5\n" + rest);
  CHECK(e.engines == std::vector{engine_kind::simulator, engine_kind::wall_clock});
  const auto simulated = description_of(cell_at(e, 0, engine_kind::simulator));
  CHECK(simulated == description_of(cell_at(good(rest), 0, engine_kind::simulator)));
  const auto clock = description_of(cell_at(e, 0, engine_kind::wall_clock));
  CHECK(clock != simulated);
  CHECK(clock !=
        description_of(cell_at(good("engine = \"both\"\n" + rest), 0, engine_kind::wall_clock)));
}

TEST_CASE("hints expand to separate runs with distinct names") {
  const auto e = good(
      "[[workload]]\nname = \"a\"\n[[run]]\nname = \"r\"\nhint = [\"own\", \"stale\"]\n"
      "jitter.link = \"constant\"\njitter.link_mean_ms = [1, 2.5]\n");
  REQUIRE(e.runs.size() == 4);
  CHECK(e.runs[0].name == "r own link_mean_ms 1");
  CHECK(e.runs[3].name == "r stale link_mean_ms 2.5");
  CHECK(e.runs[3].hint == hint_quality::stale);
}

TEST_CASE("a description holds everything that the outcome depends on, and no name") {
  const auto c = jittered_cell();
  auto other = c;
  other.workload = other.run = other.weather = other.job.name = "renamed";
  CHECK(description_of(other) == description_of(c));
  const auto differs = [&](auto change) {
    auto changed = c;
    change(changed);
    return description_of(changed) != description_of(c);
  };
  CHECK(differs([](cell& x) { ++x.job.jitter.seed; }));
  CHECK(differs([](cell& x) { ++x.job.train.steps; }));
  CHECK(differs([](cell& x) { x.hint = hint_quality::calm; }));
  CHECK(differs([](cell& x) { x.agreement = rank_agreement::candidates; }));
  CHECK(differs([](cell& x) { x.job.dispatch.slots = job::slots_of_1f1b; }));
  CHECK(differs([](cell& x) { study::options_of(x.job).dispatch.run_ahead = 3; }));
  CHECK(differs([](cell& x) { block(x); }));
  CHECK(differs([](cell& x) { x.job.dispatch.admit = admission::small_large_small; }));
  CHECK(differs([](cell& x) { x.job.jitter.stall_factor = 2; }));
  CHECK(differs([](cell& x) { x.job.jitter.compute_sigma = 0.1; }));
  CHECK(differs([](cell& x) { study::options_of(x.job).machine.efficiency = 0.4; }));
  CHECK(differs([](cell& x) { study::options_of(x.job).images.mean = 1; }));
  CHECK(differs([](cell& x) { study::options_of(x.job).texts.mean = 1; }));
  CHECK(differs([](cell& x) { study::options_of(x.job).experts.concentration = 1; }));
  CHECK(differs([](cell& x) { x.job.cost.speed = {2}; }));
  CHECK(differs([](cell& x) { x.job.pipeline.cuts.kind = job::cut_kind::layers; }));
  CHECK(differs([](cell& x) { x.job.cost.forward_ms = {2}; }));
}

TEST_CASE("the contents of files are part of the description") {
  using setter = void (*)(job::job&, const std::string& path);
  for (const auto set :
       {setter{[](auto&j, auto&path) { j.dispatch.policy = "table:" + path; }},
        setter{[](auto&j, auto&path) { j.dispatch.policy = "lib:" + path; }},
        setter{[](auto&j, auto&path) { j.delays.file = path; }},
        setter{[](auto&j, auto&path) { study::options_of(j).texts.histogram = path; }}}) {
    const auto described = [&](const std::string& text) {
      const scratch_file file{text};
      auto c = plain_cell();
      set(c.job, file.path());
      auto line = description_of(c);
      for (auto at = line.find(file.path()); at != std::string::npos; at = line.find(file.path()))
        line.replace(at, file.path().size(), "F");
      return line;
    };
    CHECK(described("a") == described("a"));
    CHECK(described("a") != described("b"));
  }
}

TEST_CASE("a workload reads [cost] from its profile, relative to the experiment") {
  const scratch_file profile{"# recorded\n[cost]\nforward_ms = [1, 2]\nlink_ms = 0.5\n"};
  const std::filesystem::path path{profile.path()};
  const auto text = [](const std::string& cost) {
    return "[[workload]]\nname = \"w\"\npipeline.stages = 2\n" + cost + "[[run]]\nname = \"r\"\n";
  };
  const auto e = parse_experiment(text("cost.profile = \"" + path.filename().string() + "\"\n"),
                                  path.parent_path() / "x.toml");
  if (!e) FAIL(e.message());
  const auto& cost = e->workloads[0].job.cost;
  CHECK(cost.forward_ms == std::vector{1.0, 2.0});
  CHECK(cost.backward_ms == std::vector{1.0});
  CHECK(cost.link_ms == 0.5);
  // Equal times give the same cell, wherever they come from.
  const auto by_hand = good(text("cost.forward_ms = [1, 2]\ncost.link_ms = 0.5\n"));
  CHECK(description_of(first_cell(*e)) == description_of(first_cell(by_hand)));
}

TEST_CASE("every key is in the reference") {
  const auto text = experiment_reference();
  for (const auto* key :
       {"seeds = [1, 2, 3]", "[[workload]]", "machine.tflops = 165.2",
        "images.spread = \"uniform\"", "paper.bfw", "[[run]]", "hint = \"own\"",
        "dispatch.slots = \"auto\"", "[[weather]]", "jitter.stall_factor", "jitter.pause_ms"})
    CHECK(text.find(key) != std::string::npos);
}

}  // namespace rrfp::experiment
