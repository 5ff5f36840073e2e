/// The experiments of the paper can be read, and match its tables.
#include <catch2/catch.hpp>

#include <filesystem>
#include <set>

#include <rrfp/job/job.hpp>
#include <rrfp/policies/registry.hpp>

#include "cell.hpp"
#include "program.hpp"
#include "support.hpp"

namespace rrfp::experiment {

namespace {

experiment loaded(const std::string& name) {
  const auto e = load_experiment(RRFP_SOURCE "/bench/paper/" + name);
  INFO((e ? "" : e.message()));
  REQUIRE(e.ok());
  return *e;
}

}  // namespace

TEST_CASE("tables 1 and 2 have the paper's 20 rows with its numbers of devices") {
  const auto one = loaded("table1.toml");
  const auto two = loaded("table2.toml");
  CHECK(one.workloads.size() == 12);
  CHECK(two.workloads.size() == 8);
  std::multiset<std::uint32_t> devices;
  for (const auto& w : two.workloads)
    devices.insert(w.job.pipeline.stages * w.job.pipeline.tp * w.job.pipeline.replicas);
  CHECK(devices == std::multiset<std::uint32_t>{32, 32, 32, 64, 64, 64, 128, 128});
  for (const auto& e : {one, two})
    for (const auto& w : e.workloads) {
      CHECK(w.paper.in_order_s > 2);
      CHECK(w.paper.bfw > w.paper.bf);
      CHECK(w.paper.bf > w.paper.zb);
    }
}

TEST_CASE("every experiment can be read, and its head comment names the command that runs it") {
  std::set<std::string> names;
  for (const auto* folder : {"bench/paper", "bench/questions", "apps/experiments"})
    for (const auto& file :
         std::filesystem::directory_iterator{RRFP_SOURCE "/" + std::string{folder}}) {
      const auto path = file.path().lexically_relative(RRFP_SOURCE).string();
      INFO(path);
      const auto e = load_experiment(file.path().string());
      INFO((e ? "" : e.message()));
      REQUIRE(e.ok());
      names.insert(e->name);
      CHECK_THAT(test::text_of(file.path().string()),
                 Catch::Matchers::Contains("\n#   rrfp-jitter " + path + " --out DIR"));
    }
  CHECK(names.size() >= 15);
}

TEST_CASE("one calibration serves every row: no row or run of the paper has its own constants") {
  const auto calibration =
      job::load_job(RRFP_SOURCE "/bench/calibration.toml", policies::registry(), {},
                    job::job_use::simulate, study::schema());
  REQUIRE(calibration.ok());
  std::set<std::string> common;
  for (const auto& s : job::changes(*calibration)) common.insert(s.key + "=" + s.value);
  for (const auto* name : {"table1.toml", "table2.toml", "table3.toml", "table6.toml",
                           "table7.toml", "table8.toml", "figure2.toml", "figure5.toml"}) {
    const auto e = loaded(name);
    for (std::size_t number = 0; number < e.cells(); ++number)
      for (const auto& s : job::changes(cell_at(e, number, engine_kind::simulator).job)) {
        INFO(name << " " << s.key << " = " << s.value);
        const bool of_injection = e.name == "table 6" && s.key.starts_with("jitter.");
        CHECK((common.contains(s.key + "=" + s.value) || of_injection || s.key == "name" ||
               s.key == "cost.preset" || s.key == "train.steps" || s.key == "jitter.seed" ||
               s.key.starts_with("pipeline.") || s.key.starts_with("dispatch.")));
      }
  }
}

}  // namespace rrfp::experiment
