// The tools that read the files of deploy/ accept them, and the files refer to existing metrics and
// files.
#include <catch2/catch.hpp>

#include <memory>
#include <regex>
#include <set>

#include "eventually.hpp"
#include "http.hpp"
#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

const std::string deploy = RRFP_SOURCE "/deploy";
const std::string tests = RRFP_SOURCE "/test/deploy";

outcome shell(const std::string& command) { return run_program({"/bin/sh", "-c", command}); }

/// Whether the tool is installed; warns if it is not.
bool is_installed(const std::string& probe, const std::string& tool) {
  if (shell(probe + " >/dev/null 2>&1").code == 0) return true;
  WARN("skipped: " << tool << " is not installed (scripts/setup installs it where it can)");
  return false;
}

/// A job on two nodes of this machine that runs until it is interrupted.
class running_job {
 public:
  running_job()
      : port_(free_ports(2)),
        run_({RRFP_NODE, "run", job(), "--local-nodes", "2", "--metrics",
              ":" + std::to_string(port_)}) {}

  std::uint16_t port() const { return port_; }
  bool is_stepping() const {
    const bool steps_twice = eventually([&] { return steps() >= 2; }, std::chrono::seconds{60});
    if (!steps_twice) WARN("the job said: " << run_.err());
    return steps_twice;
  }
  double steps() const {
    const auto page = get(port_, "/metrics");
    if (page.code != 200) return 0;  // nobody answers yet, or 404 while the server begins
    return samples_of(page.body)["rrfp_steps_total{node=\"0\",run=\"watched\"}"];
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

/// `text` with every `from` replaced by `to`.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

/// Percent-encoded for a URL.
std::string encoded(const std::string& text) {
  std::string url;
  for (const unsigned char c : text) {
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", c);
    url += code;
  }
  return url;
}

/// Prometheus with the configuration of deploy/, on the two nodes of a job and with a shorter
/// interval.
class scraping_prometheus {
 public:
  explicit scraping_prometheus(const running_job& job) : port_(free_ports(1)) {
    auto config = replaced(text_of(deploy + "/prometheus/prometheus.yml"), "15s", "1s");
    const std::string target = "- 127.0.0.1:";
    config = replaced(config, target + "9464",
                      target + std::to_string(job.port()) + "\n          " + target +
                          std::to_string(job.port() + 1));
    std::ofstream{folder_ / "prometheus.yml"} << config;
    std::filesystem::copy(deploy + "/prometheus/rrfp.rules.yml", folder_ / "rrfp.rules.yml");
    server_ = std::make_unique<program>(std::vector<std::string>{
        "/usr/bin/prometheus", "--config.file=" + (folder_ / "prometheus.yml"),
        "--storage.tsdb.path=" + (folder_ / "data"),
        "--web.listen-address=127.0.0.1:" + std::to_string(port_)});
  }

  /// The current number of samples of a query.
  std::size_t samples(const std::string& query) const {
    const auto r = get(port_, "/api/v1/query?query=" + encoded(query));
    const auto parsed = json::parse(r.body, nullptr, false);
    return r.code == 200 && parsed.is_object() ? parsed["data"]["result"].size() : 0;
  }
  /// Whether the query soon gives `wanted` samples; 0: any.
  bool gives(const std::string& query, std::size_t wanted = 0) const {
    const auto holds = [&] {
      const auto n = samples(query);
      return wanted == 0 ? n > 0 : n == wanted;
    };
    return eventually(holds, std::chrono::seconds{60});
  }
  std::string log() const { return server_->err(); }

 private:
  scratch_folder folder_;
  std::uint16_t port_;
  std::unique_ptr<program> server_;
};

/// The families that a page of metrics declares.
std::set<std::string> families_in(const std::string& page) {
  std::set<std::string> names;
  const std::regex type{R"(# TYPE (\w+) \w+)"};
  for (std::sregex_iterator at{page.begin(), page.end(), type}, end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

/// The families that an expression queries.
std::set<std::string> families_of(const std::string& expression) {
  std::set<std::string> names;
  const std::regex name{R"(\brrfp_\w+)"};
  for (std::sregex_iterator at{expression.begin(), expression.end(), name}, end; at != end; ++at)
    names.insert(std::regex_replace(at->str(), std::regex{"_(bucket|sum|count)$"}, ""));
  return names;
}

}  // namespace

TEST_CASE("systemd accepts the unit") {
  if (!is_installed("systemd-analyze --version", "systemd-analyze")) return;
  const scratch_folder folder;
  const auto unit = folder / "rrfp-node@.service";
  // Verified with the built program instead of the installed one.
  std::ofstream{unit} << std::regex_replace(text_of(deploy + "/systemd/rrfp-node@.service"),
                                            std::regex{"/usr/bin/rrfp-node"}, RRFP_NODE);
  const auto o = run_program({"/usr/bin/systemd-analyze", "verify", "--man=no", unit});
  INFO(o.out << o.err);
  CHECK(o.code == 0);
  CHECK_THAT(o.err, !Contains("rrfp-node@"));
  // It also rejects a wrong unit.
  std::ofstream{unit, std::ios::app} << "\n[Service]\nExecStart=/absent/program\n";
  CHECK(run_program({"/usr/bin/systemd-analyze", "verify", "--man=no", unit}).code != 0);
}

TEST_CASE("the schemas of Kubernetes accept the manifests") {
  if (!is_installed(RRFP_PYTHON " -c 'import kubernetes_validate'", "kubernetes-validate")) return;
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

TEST_CASE("the sbatch script is valid bash") {
  CHECK(run_program({"/bin/bash", "-n", deploy + "/slurm/rrfp.sbatch"}).code == 0);
  const auto o = run_program({"/bin/bash", deploy + "/slurm/rrfp.sbatch"});
  CHECK(o.code != 0);
  CHECK_THAT(o.err, Contains("usage: sbatch"));
}

TEST_CASE("the container files copy what exists, and their programs do not run as root") {
  for (const std::string name : {"Containerfile", "Containerfile.wheel"}) {
    const auto text = text_of(deploy + "/container/" + name);
    INFO(name);
    std::set<std::string> stages;
    std::string stage, user;
    int copies = 0;
    const std::regex line{R"(\n(FROM|COPY|USER) ([^\n]*))"};
    for (std::sregex_iterator at{text.begin(), text.end(), line}, end; at != end; ++at) {
      INFO(at->str());
      std::istringstream words{at->str(2)};
      std::string first, second;
      words >> first >> second;
      if (at->str(1) == "USER") user = first;
      if (at->str(1) == "FROM") {  // a stage begins as root
        CHECK((first == "debian:12" || first == "debian:12-slim"));
        user = "root";
        if (second == "AS" && words >> stage) stages.insert(stage);
      }
      if (at->str(1) != "COPY") continue;
      ++copies;
      const bool is_of_stage = first.starts_with("--from=");
      if (is_of_stage) CHECK(stages.contains(first.substr(7)));
      // /src is this folder; the wheel and the other results of a build are made before.
      const auto source = is_of_stage ? replaced(second, "/src/", "") : first;
      const bool is_made = source.starts_with("build/") || source.starts_with(".venv/") ||
                           source.starts_with("/opt/") || source == "rrfp-*-cp311-*.whl";
      CHECK((is_made || std::filesystem::exists(RRFP_SOURCE "/" + source)));
    }
    CHECK(copies >= 2);
    CHECK(user != "root");
    CHECK_THAT(text, Contains("--uid " + user + " rrfp") && Contains("\nENTRYPOINT ["));
  }
}

TEST_CASE("the image of rrfp-node has the packages that it links, and the folders of libtorch") {
  if (!is_installed("grep -x 'VERSION_ID=\"12\"' /etc/os-release", "Debian 12")) return;
  const auto text = text_of(deploy + "/container/Containerfile");
  const std::regex folder{R"(--from=build /src/(\.venv/\S+) /src/(\S+))"};
  int folders = 0;
  for (std::sregex_iterator at{text.begin(), text.end(), folder}, end; at != end; ++at, ++folders) {
    CHECK(at->str(1) == at->str(2));
    CHECK(std::filesystem::is_directory(RRFP_SOURCE "/" + at->str(1)));
  }
  CHECK(folders == 2);
  const auto linked =
      shell("readelf -d " RRFP_NODE
            R"( | sed -n 's/.*NEEDED.*\[\(.*\)\]/*-linux-gnu\/\1/p' | xargs dpkg -S)"
            " 2>/dev/null | sed 's/[:,].*//' | sort -u")
          .out;
  INFO(linked);
  std::istringstream packages{linked};
  int named = 0;
  for (std::string package; packages >> package;) {
    // Every Debian has these.
    if (std::set<std::string>{"libc6", "libgcc-s1", "libstdc++6", "zlib1g"}.contains(package))
      continue;
    CHECK_THAT(text, Contains(" " + package + " ") || Contains(" " + package + "\n"));
    ++named;
  }
  CHECK(named >= 5);
}

TEST_CASE("the image of the Python package has the torch that the tests use") {
  const auto setup = text_of(RRFP_SOURCE "/scripts/setup");
  std::smatch torch;
  REQUIRE(std::regex_search(setup, torch, std::regex{R"(torch==[0-9.]+)"}));
  CHECK_THAT(text_of(deploy + "/container/Containerfile.wheel"),
             Contains("TORCH=" + torch.str() + " "));
}

TEST_CASE("every metric that the dashboard and the alerts query is served") {
  const running_job job;
  REQUIRE(job.is_stepping());
  const auto served = families_in(get(job.port(), "/metrics").body);
  REQUIRE(served.size() > 30);
  const auto dashboard = json::parse(text_of(deploy + "/grafana/rrfp.json"));
  int queries = 0;
  std::set<std::string> titles;
  for (const auto& panel : dashboard.at("panels")) titles.insert(panel.at("title"));
  for (const auto* const needed :
       {"Stragglers", "Held-out loss", "Lost nodes", "Time until lost nodes joined again"})
    CHECK(titles.contains(needed));
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
  const auto documented = families_of(text_of(RRFP_SOURCE "/docs/monitoring.md"));
  for (const auto& name : documented) {
    INFO(name);
    CHECK(served.contains(name));
  }
}

TEST_CASE("the page describes every metric that is served, with its type and meaning") {
  const running_job job;
  REQUIRE(job.is_stepping());
  const auto served = get(job.port(), "/metrics").body;
  const auto page = text_of(RRFP_SOURCE "/docs/monitoring.md");
  const std::regex row{R"(\| `(rrfp_\w+)` \| (\w+) \| ([^|]*) \| ([^|\n]+) \|)"};
  std::set<std::string> described;
  for (std::sregex_iterator at{page.begin(), page.end(), row}, end; at != end; ++at) {
    const std::string name = at->str(1);
    INFO(at->str());
    CHECK(described.insert(name).second);
    CHECK_THAT(served, Contains("# HELP " + name + " " + at->str(4) + "\n# TYPE " + name + " " +
                                at->str(2) + "\n"));
    // The labels follow those that all metrics of a run have.
    const std::regex sample{"\n" + name +
                            "(?:_bucket)?\\{node=\"0\"(?:,run=\"watched\")?([^}]*)\\}"};
    std::smatch found;
    if (!std::regex_search(served, found, sample)) continue;
    auto labels = std::regex_replace(found.str(1), std::regex{"=\"[^\"]*\""}, "");
    labels = std::regex_replace(replaced(labels, ",le", ""), std::regex{"^,"}, "");
    CHECK(replaced(labels, ",", ", ") == at->str(3));
  }
  CHECK(described == families_in(served));
}

TEST_CASE("Prometheus accepts its configuration and scrapes a running job") {
  if (!is_installed("promtool --version && prometheus --version", "prometheus")) return;
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

  const scraping_prometheus prometheus{job};
  CHECK(prometheus.gives("up==1", 2));
  CHECK(prometheus.gives("rrfp_steps_total>2", 1));
  CHECK(prometheus.gives("rate(rrfp_step_seconds_sum[10s])>0", 1));
  CHECK(prometheus.gives("rrfp_healthy==1", 2));
  CHECK(prometheus.gives("rrfp_stage_steps_total{stage=\"1\"}", 1));
}

TEST_CASE("every query of the dashboard gives numbers over a running job") {
  if (!is_installed("promtool --version && prometheus --version", "prometheus")) return;
  const running_job job;
  REQUIRE(job.is_stepping());
  const scraping_prometheus prometheus{job};
  REQUIRE(prometheus.gives("rate(rrfp_step_seconds_sum[10s])>0", 1));
  const auto dashboard = json::parse(text_of(deploy + "/grafana/rrfp.json"));
  int queries = 0, without_data = 0;
  for (const auto& panel : dashboard.at("panels"))
    for (const auto& target : panel.at("targets")) {
      auto query = target.at("expr").get<std::string>();
      // Only served if a rank has a GPU, or once the job has evaluated.
      if (query.starts_with("rrfp_device_") || query.starts_with("rrfp_eval_loss")) {
        ++without_data;
        continue;
      }
      query = replaced(replaced(query, "$run", ".*"), "$__rate_interval", "10s");
      INFO(panel.at("title") << ": " << query << "\n" << prometheus.log());
      CHECK(prometheus.gives(query));
      ++queries;
    }
  CHECK(queries > 25);
  CHECK(without_data == 3);
  CHECK(prometheus.samples("rrfp_absent") == 0);
}

TEST_CASE("every alert fires when it should and not before") {
  if (!is_installed("promtool --version", "prometheus")) return;
  const scratch_folder folder;
  const auto rules = text_of(deploy + "/prometheus/rrfp.rules.yml");
  const auto series = text_of(tests + "/alerts.test.yml");
  const std::regex alert{R"(- alert: (\w+))"};
  for (std::sregex_iterator at{rules.begin(), rules.end(), alert}, end; at != end; ++at) {
    INFO(at->str());
    CHECK_THAT(series, Contains("alertname: " + at->str(1) + "\n"));
  }
  std::ofstream{folder / "alerts.test.yml"} << series;
  const auto tested = [&](const std::string& with) {
    std::ofstream{folder / "rrfp.rules.yml"} << with;
    return shell("cd " + (folder / "") + " && promtool test rules alerts.test.yml");
  };
  const auto o = tested(rules);
  INFO(o.out << o.err);
  CHECK(o.code == 0);
  CHECK(tested(replaced(rules, "> 1.5 *", "> 2.5 *")).code != 0);
}
