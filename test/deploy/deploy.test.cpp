// The files of deploy/ are what the tools that read them take, and speak of what is there.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <regex>
#include <set>

#include "http.hpp"
#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

const std::string deploy = RRFP_SOURCE "/deploy";

outcome shell(const std::string& command) { return run_program({"/bin/sh", "-c", command}); }

/// False, with a line that says so, where the tool is not installed.
bool have(const std::string& probe, const std::string& what) {
  if (shell(probe + " >/dev/null 2>&1").code == 0) return true;
  WARN("skipped: " << what << " is not installed (scripts/setup installs it where it can)");
  return false;
}

bool eventually(const std::function<bool()>& holds, std::chrono::seconds limit) {
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < limit) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  }
  return false;
}

/// A job on two nodes of this machine that goes on until it is interrupted.
class running_job {
 public:
  running_job()
      : port_(free_ports(2)),
        run_({RRFP_NODE, "run", job(), "--local-nodes", "2", "--metrics",
              ":" + std::to_string(port_)}) {}

  std::uint16_t port() const { return port_; }
  bool is_stepping() const {
    return eventually([&] { return steps() >= 2; }, std::chrono::seconds{60});
  }
  double steps() const {
    return samples_of(get(port_, "/metrics").body)["rrfp_steps_total{node=\"0\",run=\"watched\"}"];
  }

 private:
  std::string job() const {
    const auto file = folder_ / "job.toml";
    std::ofstream{file} << "name = \"watched\"\n[pipeline]\nstages = 2\nmicrobatches = 4\n"
                           "[model]\nlayers = 2\n[device]\nkind = \"emulated\"\n"
                           "[train]\nsteps = 100000\n"
                           "[cost]\nforward_ms = 2\nbackward_ms = 2\nweight_ms = 2\n";
    return file;
  }

  scratch_folder folder_;
  std::uint16_t port_;
  program run_;
};

/// The families that a page of metrics declares.
std::set<std::string> families_in(const std::string& page) {
  std::set<std::string> names;
  const std::regex type{R"(# TYPE (\w+) \w+)"};
  for (std::sregex_iterator at{page.begin(), page.end(), type}, end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

/// The families that an expression asks for.
std::set<std::string> families_of(const std::string& expression) {
  std::set<std::string> names;
  const std::regex name{R"(\brrfp_\w+)"};
  for (std::sregex_iterator at{expression.begin(), expression.end(), name}, end; at != end; ++at)
    names.insert(std::regex_replace(at->str(), std::regex{"_(bucket|sum|count)$"}, ""));
  return names;
}

}  // namespace

TEST_CASE("systemd takes the unit") {
  if (!have("systemd-analyze --version", "systemd-analyze")) return;
  const scratch_folder folder;
  const auto unit = folder / "rrfp-node@.service";
  // Verified with the program that is here in the place of the installed one.
  std::ofstream{unit} << std::regex_replace(text_of(deploy + "/systemd/rrfp-node@.service"),
                                            std::regex{"/usr/bin/rrfp-node"}, RRFP_NODE);
  const auto o = run_program({"/usr/bin/systemd-analyze", "verify", "--man=no", unit});
  INFO(o.out << o.err);
  CHECK(o.code == 0);
  CHECK_THAT(o.err, !Contains("rrfp-node@"));
  // And it can say no.
  std::ofstream{unit, std::ios::app} << "\n[Service]\nExecStart=/absent/program\n";
  CHECK(run_program({"/usr/bin/systemd-analyze", "verify", "--man=no", unit}).code != 0);
}

TEST_CASE("the schemas of Kubernetes take the manifests") {
  if (!have(RRFP_PYTHON " -c 'import kubernetes_validate'", "kubernetes-validate")) return;
  const auto validate = [](const std::string& file) {
    return run_program({RRFP_PYTHON, "-m", "kubernetes_validate", "--strict", file});
  };
  const auto file = deploy + "/kubernetes/rrfp.yaml";
  const auto o = validate(file);
  INFO(o.out << o.err);
  CHECK(o.code == 0);
  for (const auto* kind : {"service/rrfp", "persistentvolumeclaim/rrfp-checkpoints", "job/rrfp"})
    CHECK_THAT(o.out + o.err, Contains(kind));
  const scratch_folder folder;
  std::ofstream{folder / "bad.yaml"}
      << std::regex_replace(text_of(file), std::regex{"completions: 4"}, "completions: four");
  CHECK(validate(folder / "bad.yaml").code != 0);
}

TEST_CASE("the sbatch script is good shell") {
  CHECK(run_program({"/bin/bash", "-n", deploy + "/slurm/rrfp.sbatch"}).code == 0);
  const auto o = run_program({"/bin/bash", deploy + "/slurm/rrfp.sbatch"});
  CHECK(o.code != 0);
  CHECK_THAT(o.err, Contains("usage: sbatch"));
}

TEST_CASE("what the container file copies is there") {
  const auto text = text_of(deploy + "/container/Containerfile");
  CHECK_THAT(text, Contains("COPY scripts/setup scripts/setup") &&
                       Contains("scripts/build release rrfp-node"));
  for (const auto* file : {"/scripts/setup", "/scripts/build"})
    CHECK(std::filesystem::exists(std::string{RRFP_SOURCE} + file));
  for (const auto* line : {"libcaf-core", "libprometheus-cpp-core", "libcivetweb1", "libucx0"})
    CHECK_THAT(text, Contains(line));
}

TEST_CASE("every metric that the dashboard and the alerts query is served") {
  const running_job job;
  REQUIRE(job.is_stepping());
  const auto served = families_in(get(job.port(), "/metrics").body);
  REQUIRE(served.size() > 30);
  const auto dashboard = json::parse(text_of(deploy + "/grafana/rrfp.json"));
  int queries = 0;
  for (const auto& panel : dashboard.at("panels"))
    for (const auto& target : panel.at("targets"))
      for (const auto& name : families_of(target.at("expr").get<std::string>())) {
        INFO(panel.at("title") << ": " << name);
        CHECK(served.contains(name));
        ++queries;
      }
  CHECK(queries > 30);
  const auto rules = families_of(text_of(deploy + "/prometheus/rrfp.rules.yml"));
  CHECK(rules.size() >= 3);
  for (const auto& name : rules) {
    INFO(name);
    CHECK(served.contains(name));
  }
  for (const auto& name : families_of(text_of(deploy + "/README.md"))) {
    INFO(name);
    CHECK(served.contains(name));
  }
}

TEST_CASE("Prometheus takes its configuration and scrapes a running job") {
  if (!have("promtool --version && prometheus --version", "prometheus")) return;
  const auto checked =
      run_program({"/usr/bin/promtool", "check", "config", deploy + "/prometheus/prometheus.yml"});
  INFO(checked.out << checked.err);
  CHECK(checked.code == 0);

  const running_job job;
  REQUIRE(job.is_stepping());
  const scratch_folder folder;
  const auto page = folder / "page";
  std::ofstream{page} << get(job.port(), "/metrics").body;
  const auto linted = shell("promtool check metrics < " + page);
  INFO(linted.out << linted.err);
  CHECK(linted.code == 0);

  // The same configuration, quicker, and with this job's nodes as targets.
  auto config = text_of(deploy + "/prometheus/prometheus.yml");
  config = std::regex_replace(config, std::regex{"15s"}, "1s");
  config = std::regex_replace(config, std::regex{"- 127.0.0.1:9464"},
                              "- 127.0.0.1:" + std::to_string(job.port()) +
                                  "\n          - 127.0.0.1:" + std::to_string(job.port() + 1));
  std::ofstream{folder / "prometheus.yml"} << config;
  std::filesystem::copy(deploy + "/prometheus/rrfp.rules.yml", folder / "rrfp.rules.yml");
  const auto port = free_ports(1);
  program prometheus{{"/usr/bin/prometheus", "--config.file=" + (folder / "prometheus.yml"),
                      "--storage.tsdb.path=" + (folder / "data"),
                      "--web.listen-address=127.0.0.1:" + std::to_string(port)}};
  const auto answer = [&](const std::string& query) {
    const auto r = get(port, "/api/v1/query?query=" + query);
    const auto parsed = json::parse(r.body, nullptr, false);
    return r.code == 200 && parsed.is_object() ? parsed["data"]["result"] : json::array();
  };
  INFO(prometheus.err());
  CHECK(eventually([&] { return answer("up%3D%3D1").size() == 2; }, std::chrono::seconds{60}));
  CHECK(eventually([&] { return answer("rrfp_steps_total%3E2").size() == 1; },
                   std::chrono::seconds{60}));
  CHECK(eventually([&] { return answer("rate(rrfp_step_seconds_sum%5B10s%5D)%3E0").size() == 1; },
                   std::chrono::seconds{60}));
  CHECK(answer("rrfp_healthy%3D%3D1").size() == 2);
  CHECK(answer("rrfp_stage_steps_total%7Bstage%3D%221%22%7D").size() == 1);
}
