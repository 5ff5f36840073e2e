/// Whether all nodes of a large job join again after one was lost, under systemd and Kubernetes,
/// and how long that takes: in virtual time, with the numbers of the unit and of the manifest.
///
/// The model of a restarted node: when its next attempt begins, and how long the attempt waits for
/// the others. The job resumes once all attempts overlap. When node 0 times out, the nodes that
/// wait with it end too.
///
/// systemd starts a unit RestartSec after its end, and gives up at start number StartLimitBurst + 1
/// within StartLimitIntervalSec. Kubernetes replaces a failed pod of a Job after 10 s, 20 s, 40 s
/// ..., at most 10 minutes. The delay depends on the failures of the index with
/// backoffLimitPerIndex, otherwise on those of the whole Job. Ignored failures increase the delay,
/// but do not count against the limits.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <regex>

#include <nlohmann/json.hpp>

#include <rrfp/job/job.hpp>

#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

const std::string deploy = RRFP_SOURCE "/deploy";
constexpr int nodes = 100;
constexpr int seeds = 200;

/// The restart rules of a service manager; all times in seconds.
class restarts {
 public:
  virtual ~restarts() = default;
  /// When a node that ended with `code` at `now` restarts; nothing: never, and the job is given up.
  virtual std::optional<double> again(int node, int code, double now) = 0;
  virtual double join_timeout() const = 0;
  /// Maximum time from the start of a node until it joins.
  virtual double start_max() const = 0;
};

double join_timeout_in(const std::string& arguments) {
  std::smatch found;
  const std::regex setting{R"(transport\.join_timeout_s=(\d+))"};
  return std::regex_search(arguments, found, setting) ? std::stod(found[1])
                                                      : rrfp::job::job{}.transport.join_timeout_s;
}

class by_systemd : public restarts {
 public:
  explicit by_systemd(const std::string& unit)
      : pause_(value_of(unit, "RestartSec")),
        interval_(value_of(unit, "StartLimitIntervalSec")),
        burst_(interval_ > 0 ? static_cast<std::size_t>(value_of(unit, "StartLimitBurst")) : 0),
        join_(join_timeout_in(unit)),
        never_(unit.find("\nRestartPreventExitStatus=2\n") != std::string::npos ? 2 : -1) {}

  std::optional<double> again(int node, int code, double now) override {
    if (code == never_) return std::nullopt;
    auto& starts = starts_[node];
    if (starts.empty()) starts.push_back(now);
    const auto next = now + pause_;
    std::erase_if(starts, [&](double t) { return t < next - interval_; });
    if (interval_ > 0 && starts.size() >= burst_) return std::nullopt;
    starts.push_back(next);
    return next;
  }
  double join_timeout() const override { return join_; }
  double start_max() const override { return 20; }

 private:
  static double value_of(const std::string& unit, const std::string& key) {
    std::smatch found;
    INFO(key);
    REQUIRE(std::regex_search(unit, found, std::regex{"\n" + key + R"(=(\d+)\n)"}));
    return std::stod(found[1]);
  }

  double pause_, interval_;
  std::size_t burst_;
  double join_;
  int never_;
  std::map<int, std::vector<double>> starts_;
};

class by_kubernetes : public restarts {
 public:
  explicit by_kubernetes(const json& job) {
    const auto& spec = job.at("spec");
    by_index_ = spec.contains("backoffLimitPerIndex");
    limit_ = by_index_ ? spec["backoffLimitPerIndex"].get<int>() : spec.value("backoffLimit", 6);
    join_ = join_timeout_in(spec.at("template").at("spec").at("containers")[0].at("args").dump());
    for (const auto& rule : spec.at("podFailurePolicy").at("rules")) {
      if (!rule.contains("onExitCodes")) continue;
      REQUIRE(rule["onExitCodes"].at("operator") == "In");
      // The first rule that fits counts.
      for (const int code : rule["onExitCodes"].at("values"))
        actions_.try_emplace(code, rule.at("action"));
    }
  }

  std::optional<double> again(int node, int code, double now) override {
    const auto rule = actions_.find(code);
    if (rule != actions_.end() && rule->second == "FailJob") return std::nullopt;
    const bool counts = rule == actions_.end() || rule->second != "Ignore";
    const auto whose = by_index_ ? node : 0;
    if (counts && ++counted_[whose] > limit_) return std::nullopt;
    const auto failures = ++failures_[whose];
    return now + std::min(600.0, 10 * std::pow(2.0, std::min(failures, 20) - 1));
  }
  double join_timeout() const override { return join_; }
  double start_max() const override { return 90; }

 private:
  bool by_index_ = false;
  int limit_ = 0;
  double join_ = 0;
  std::map<int, std::string> actions_;  ///< by exit code
  std::map<int, int> failures_, counted_;
};

/// The loss of a node at time 0: its exit code, and how long its machine is away.
struct loss {
  int code = 137;
  double away = 0;
  /// Maximum time until the others detect the loss and end.
  double detect_max = 3;
};

/// When all nodes have joined again; nothing: never, or not within a day.
std::optional<double> rejoin(restarts& how, const loss& lost, std::uint32_t seed) {
  std::mt19937 random{seed};
  const auto uniform = [&](double max) {
    return std::uniform_real_distribution<double>{0, max}(random);
  };
  struct attempt {
    double begin = 0, end = 0;
  };
  std::vector<attempt> now(nodes);
  const auto start_again = [&](int node, int code, double at) {
    const auto next = how.again(node, code, at);
    if (!next) return false;
    const auto begin = *next + 1 + uniform(how.start_max() - 1);
    now[static_cast<std::size_t>(node)] = {begin, begin + how.join_timeout()};
    return true;
  };
  const int first = static_cast<int>(random() % nodes);
  for (int n = 0; n < nodes; ++n)
    if (!start_again(n, n == first ? lost.code : 3,
                     n == first ? lost.away : lost.detect_max / 2 + uniform(lost.detect_max / 2)))
      return std::nullopt;
  for (;;) {
    const auto last_in = std::max_element(now.begin(), now.end(), [](auto a, auto b) {
                           return a.begin < b.begin;
                         })->begin;
    int out = 0;
    for (int n = 1; n < nodes; ++n)
      if (now[static_cast<std::size_t>(n)].end < now[static_cast<std::size_t>(out)].end) out = n;
    const auto up = now[static_cast<std::size_t>(out)].end;
    if (last_in <= up) return last_in;
    if (up > 86400) return std::nullopt;
    for (int n = 0; n < nodes; ++n) {
      const bool waits_with_0 = out == 0 && now[static_cast<std::size_t>(n)].begin < up;
      if ((n == out || waits_with_0) && !start_again(n, 3, up)) return std::nullopt;
    }
  }
}

/// The longest time of many seeds; nothing if the nodes fail to join for any. `before`: earlier
/// losses of the same job.
template <class How>
std::optional<double> longest(const How& how, const loss& lost, int before = 0) {
  double worst = 0;
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    auto rules = how;
    for (int n = 0; n < before; ++n)
      if (!rejoin(rules, lost, seed * 1000 + static_cast<std::uint32_t>(n) + 1))
        return std::nullopt;
    const auto took = rejoin(rules, lost, seed);
    if (!took) return std::nullopt;
    worst = std::max(worst, *took);
  }
  return worst;
}

std::string seconds(double value) { return std::to_string(std::lround(std::ceil(value))) + " s"; }
std::string minutes(double value) {
  return std::to_string(std::lround(std::ceil(value / 60))) + " min";
}

/// The loss of a machine is detected by the node timeout.
const double node_timeout = rrfp::job::job{}.transport.node_timeout_ms / 1e3;
const loss crash{};
const loss reboot{137, 300, node_timeout};
const loss long_repair{137, 4 * 3600, node_timeout};

/// The Job of the manifest; null if no YAML parser is installed.
json manifest() {
  const auto o = run_program({RRFP_PYTHON, "-c",
                              "import json, sys, yaml\n"
                              "for d in yaml.safe_load_all(open(sys.argv[1])):\n"
                              "  if d['kind'] == 'Job': print(json.dumps(d))",
                              deploy + "/kubernetes/rrfp.yaml"});
  if (o.code == 0) return json::parse(o.out);
  WARN("skipped: kubernetes-validate is not installed (scripts/setup installs it where it can)");
  return nullptr;
}

}  // namespace

TEST_CASE("100 nodes under systemd join again after a crash, a reboot and a long repair") {
  const auto unit = text_of(deploy + "/systemd/rrfp-node@.service");
  const by_systemd how{unit};
  const auto crashed = longest(how, crash);
  const auto rebooted = longest(how, reboot);
  const auto repaired = longest(how, long_repair);
  REQUIRE((crashed && rebooted && repaired));
  CHECK_THAT(text_of(deploy + "/README.md"),
             Contains("| systemd | " + seconds(*crashed) + " | " + seconds(*crashed) + " | " +
                      seconds(*rebooted - reboot.away) + " | " +
                      minutes(*repaired - long_repair.away) + " |"));

  // The test can fail: with a start limit, waiting nodes use up their starts.
  auto counted = std::regex_replace(unit, std::regex{"StartLimitIntervalSec=0"},
                                    "StartLimitIntervalSec=3600\nStartLimitBurst=20");
  counted = std::regex_replace(counted, std::regex{"--set transport.join_timeout_s=\\d+ "}, "");
  CHECK_FALSE(longest(by_systemd{counted}, long_repair));
}

TEST_CASE(
    "100 pods of a Job join again after a crash, the twentieth crash, and the loss of a machine") {
  const auto job = manifest();
  if (job.is_null()) return;
  const by_kubernetes how{job};
  const auto crashed = longest(how, crash);
  const auto again = longest(how, crash, 19);
  const auto rebooted = longest(how, reboot);
  const auto repaired = longest(how, long_repair);
  REQUIRE((crashed && again && rebooted && repaired));
  CHECK_THAT(text_of(deploy + "/README.md"),
             Contains("| Kubernetes | " + seconds(*crashed) + " | " + seconds(*again) + " | " +
                      seconds(*rebooted - reboot.away) + " | " +
                      minutes(*repaired - long_repair.away) + " |"));

  // The test can fail: one loss uses up a limit that all pods share,
  auto shared = job;
  shared["spec"].erase("backoffLimitPerIndex");
  shared["spec"]["backoffLimit"] = 40;
  shared["spec"]["podFailurePolicy"]["rules"].erase(1);
  CHECK_FALSE(longest(by_kubernetes{shared}, crash));
  // and nodes that wait for less time than the back-off miss each other.
  auto hasty = job;
  auto& arguments = hasty["spec"]["template"]["spec"]["containers"][0]["args"];
  for (auto& argument : arguments)
    if (argument.get<std::string>().starts_with("transport.join_timeout_s="))
      argument = "transport.join_timeout_s=60";
  const auto missed = longest(by_kubernetes{hasty}, reboot);
  CHECK((!missed || *missed > 2 * *rebooted));
}
