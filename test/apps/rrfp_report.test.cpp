// Pages and profiles of real traces, and refusals.
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "program.hpp"
#include "refused.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

const std::string job = RRFP_SOURCE "/apps/jobs/quickstart.toml";

/// A trace of the quickstart's two runs, three steps each.
const std::string& quickstart_trace() {
  static const scratch_folder folder;
  static const auto trace = folder / "trace.json";
  if (!std::filesystem::exists(trace)) {
    const auto o = run_program({RRFP_NODE, "run", job, "--set", "train.steps=3", "--trace", trace});
    INFO(o.out << o.err);
    REQUIRE(o.code == 0);
  }
  return trace;
}

void require_report_refused(const outcome& o, const std::vector<std::string>& expected) {
  require_refused(o, expected);
  CHECK_THAT(o.err, Catch::Matchers::StartsWith("rrfp-report: "));
}

/// For the first run of a trace, in ms: the total time of its steps, and an upper bound on the time
/// from decisions to the start of their tasks.
struct recorded {
  double steps_ms = 0;
  double launch_gaps_ms = 0;
};

recorded recorded_in(const std::string& trace, int stages) {
  struct span {
    double begin = 1e18;
    double end = 0;
  };
  std::map<int, span> steps;
  std::map<int, double> before;  ///< by process: the end of the task before
  recorded all;
  const auto events = nlohmann::json::parse(text_of(trace)).at("traceEvents");
  std::map<int, std::vector<nlohmann::json>> tasks;
  for (const auto& e : events)
    if (e["ph"] == "X" && e["cat"] != "wait" && e["pid"] < events[0]["pid"].get<int>() + stages)
      tasks[e["pid"]].push_back(e);
  for (auto& [process, list] : tasks) {
    std::sort(list.begin(), list.end(),
              [](const auto& a, const auto& b) { return a["ts"] < b["ts"]; });
    for (const auto& t : list) {
      const double begin = t["ts"], decided = t["args"]["decided_us"];
      auto& step = steps[t["args"]["step"]];
      step.begin = std::min(step.begin, decided);
      step.end = std::max(step.end, begin + t["dur"].get<double>());
      all.launch_gaps_ms += (begin - std::max(decided, before[process])) / 1e3;
      before[process] = begin + t["dur"].get<double>();
    }
  }
  for (const auto& [number, step] : steps) all.steps_ms += (step.end - step.begin) / 1e3;
  return all;
}

}  // namespace

TEST_CASE("two runs of a trace become one page") {
  const scratch_folder folder;
  const auto page = folder / "report.html";
  const auto o = run_program({RRFP_REPORT, quickstart_trace(), "--out", page});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains(page) && Contains("2 runs"));
  CHECK(count_files(folder / "") == 1);
  const auto html = text_of(page);
  CHECK_THAT(html, Contains("in-order 1F1B: 4 stages, 16 microbatches, 384 tasks; steps 1 to 3"));
  CHECK_THAT(html, Contains("Critical path") && Contains("speed-up"));
  CHECK(html.ends_with("</html>\n"));
}

TEST_CASE("the page has the figures of the run's table, with evaluations and several ranks") {
  const scratch_folder folder;
  const auto trace = folder / "trace.json", page = folder / "page.html";
  const auto ran = run_program(
      {RRFP_NODE, "run", job, "--set", "train.steps=3", "--set", "pipeline.tp=2", "--set",
       "eval.text=/usr/share/common-licenses/GPL-3", "--set", "eval.every=1", "--trace", trace});
  INFO(ran.out << ran.err);
  REQUIRE(ran.code == 0);
  REQUIRE(run_program({RRFP_REPORT, trace, "--out", page}).code == 0);
  const auto html = text_of(page);
  const auto table = ran.out.substr(ran.out.find("\nrun"));
  for (const std::string name : {"in-order 1F1B", "ready BFW"}) {
    std::istringstream cells{table.substr(table.find("\n" + name) + 1 + name.size())};
    std::string ms, speed_up, bubble, percent, slots, mib;
    cells >> ms >> speed_up >> bubble >> percent >> slots >> mib;
    INFO(table);
    CHECK_THAT(html,
               Contains("<dt>step ms</dt><dd>" + ms + "</dd><dt>speed-up</dt><dd>" + speed_up +
                        "</dd><dt>bubble</dt><dd>" + bubble + " %</dd><dt>slots</dt><dd>" + slots +
                        "</dd><dt>peak MiB</dt><dd>" + mib + "</dd>"));
  }
}

TEST_CASE("steps and runs can be chosen, and two traces compared") {
  const scratch_folder folder;
  const auto page = folder / "report.html";
  const auto copy = folder / "again.json";
  std::filesystem::copy(quickstart_trace(), copy);
  const auto one = run_program({RRFP_REPORT, quickstart_trace(), "--run", "ready BFW", "--steps",
                                "2:3", "--title", "a <title>", "--out", page});
  INFO(one.err);
  REQUIRE(one.code == 0);
  CHECK_THAT(text_of(page), Contains("steps 2 to 3 of the trace&#39;s 1 to 3") &&
                                Contains("a &lt;title&gt;") && !Contains("1F1B"));
  const auto both = run_program({RRFP_REPORT, quickstart_trace(), copy, "--out", page});
  INFO(both.err);
  REQUIRE(both.code == 0);
  CHECK_THAT(both.out, Contains("4 runs"));
  CHECK_THAT(text_of(page), Contains("ready BFW (" + copy + ")"));
}

TEST_CASE("one step of each run becomes a picture, which is well-formed and small") {
  const scratch_folder folder;
  const auto picture = folder / "step.svg";
  const auto o = run_program({RRFP_REPORT, quickstart_trace(), "--svg", picture});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("picture: " + picture) && Contains("of 2 runs"));
  CHECK(count_files(folder / "") == 1);
  const auto svg = text_of(picture);
  CHECK(svg.size() < 100 * 1024);
  CHECK_THAT(svg, Contains(">in-order 1F1B<") && Contains(">ready BFW<") && Contains("speed-up") &&
                      Contains(">stage 3<"));
  const auto read = run_program({"/usr/bin/env", "python3", "-c",
                                 "import sys, xml.etree.ElementTree as e; "
                                 "print(e.parse(sys.argv[1]).getroot().tag)",
                                 picture});
  CHECK(read.out == "{http://www.w3.org/2000/svg}svg\n");
  INFO(read.err);
  CHECK(read.code == 0);
}

TEST_CASE("the step and the runs of a picture can be chosen") {
  const scratch_folder folder;
  const auto picture = folder / "step.svg";
  const auto o = run_program({RRFP_REPORT, quickstart_trace(), "--svg", picture, "--step", "2",
                              "--run", "ready BFW", "--out", folder / "page.html"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("step 2 of 1 runs") && Contains("page.html"));
  CHECK_THAT(text_of(picture), Contains("step 2: ") && !Contains("1F1B"));
  CHECK_THAT(text_of(folder / "page.html"), Contains("<option value=\"2\" selected>"));
}

TEST_CASE("the page opens on the step that the picture shows") {
  const scratch_folder folder;
  const auto picture = folder / "step.svg";
  const auto page = folder / "page.html";
  const auto o = run_program({RRFP_REPORT, quickstart_trace(), "--svg", picture, "--out", page});
  INFO(o.err);
  REQUIRE(o.code == 0);
  const auto svg = text_of(picture);
  const auto at = svg.find(">step ");
  REQUIRE(at != std::string::npos);
  const auto step = svg.substr(at + 6, svg.find(':', at) - at - 6);
  CHECK_THAT(text_of(page), Contains("<option value=\"" + step + "\" selected>"));
}

TEST_CASE("a recorded run replays in the simulator except for its launch gaps") {
  const scratch_folder folder;
  const auto durations = folder / "run.csv";
  const auto made = run_program(
      {RRFP_REPORT, quickstart_trace(), "--run", "in-order 1F1B", "--profile", durations});
  INFO(made.err);
  REQUIRE(made.code == 0);
  CHECK_THAT(made.out, Contains("durations: " + durations) && Contains("3 steps from 1 to 3"));
  CHECK(count_files(folder / "") == 1);

  const auto plan = folder / "plan.toml";
  std::ofstream{plan} << "[pipeline]\nstages = 4\nmicrobatches = 16\n[dispatch]\n"
                         "mode = \"in-order\"\npolicy = \"one_f_one_b\"\n";
  const auto replay = [&](const std::string& csv) {
    const auto o = run_program({RRFP_SIM, plan, "--durations", csv, "--steps", "3", "--json",
                                folder / "sim.json", "--write-durations", folder / "met.csv"});
    INFO(o.err);
    REQUIRE(o.code == 0);
    return nlohmann::json::parse(text_of(folder / "sim.json")).at("makespan_ms").get<double>();
  };
  const auto ms = replay(durations);
  const auto was = recorded_in(quickstart_trace(), 4);
  INFO(ms << " replayed, " << was.steps_ms << " recorded, gaps " << was.launch_gaps_ms);
  CHECK(ms <= was.steps_ms + 0.01);
  CHECK(ms >= was.steps_ms - was.launch_gaps_ms - 0.01);
  // The written durations replay to the same time.
  CHECK(replay(folder / "met.csv") == ms);
}

TEST_CASE("a recorded run gives [cost] for a job and for an experiment") {
  const scratch_folder folder;
  const auto cost = folder / "cost.toml";
  const auto page = folder / "report.html";
  const auto made =
      run_program({RRFP_REPORT, quickstart_trace(), "--run", "in-order 1F1B", "--steps", "2:3",
                   "--profile", cost, "--backward-share", "0.75", "--out", page});
  INFO(made.err);
  REQUIRE(made.code == 0);
  CHECK_THAT(made.out, Contains("cost: " + cost) && Contains("report: " + page));
  CHECK_THAT(text_of(cost), Contains("2 steps from 2 to 3, 4 stages, 1 chunk, 16 microbatches") &&
                                Contains("0.75 of it") && Contains("link_ms = "));

  const auto sim = run_program(
      {RRFP_SIM, cost, "--set", "pipeline.stages=4", "--set", "pipeline.microbatches=16"});
  INFO(sim.err);
  CHECK(sim.code == 0);
  const auto experiment = folder / "experiment.toml";
  std::ofstream{experiment} << "seeds = [1]\n[[workload]]\nname = \"w\"\n"
                               "pipeline.stages = 4\ncost.profile = \"cost.toml\"\n"
                               "[[run]]\nname = \"r\"\n";
  const auto jitter = run_program({RRFP_JITTER, experiment, "--cell", "0"});
  INFO(jitter.err);
  CHECK(jitter.code == 0);
}

TEST_CASE("a profile that cannot be made is refused and leaves no file") {
  const scratch_folder folder;
  const auto refused = [&](const std::vector<std::string>& more,
                           const std::vector<std::string>& expected) {
    std::vector<std::string> all{RRFP_REPORT, quickstart_trace()};
    all.insert(all.end(), more.begin(), more.end());
    require_report_refused(run_program(all), expected);
  };
  const auto csv = folder / "run.csv";
  refused({"--profile", csv},
          {"--profile: expected one run, got 2: choose with --run", "\"ready BFW\""});
  refused({"--profile", folder / "run.json"}, {"--profile: expected FILE.csv", "run.json"});
  refused({"--profile", csv, "--run", "ready BFW", "--steps", "7"}, {"step from 1 to 3", "got 7"});
  refused({"--profile", "/nonexistent/run.csv", "--run", "ready BFW"},
          {"--profile /nonexistent/run.csv: cannot write"});
  refused({}, {"expected --out PAGE.html, --svg PICTURE.svg or --profile FILE"});
  const auto pipe = folder / "pipe.toml";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  refused({"--profile", pipe, "--run", "ready BFW"}, {"--profile", pipe, "device or pipe"});
  CHECK(count_files(folder / "") == 1);
}

TEST_CASE("a file that is not a trace is refused in one line and leaves no page") {
  const scratch_folder folder;
  const auto trace = folder / "trace.json";
  const auto page = folder / "report.html";
  const auto whole = text_of(quickstart_trace());
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "an empty file"},
      {"loss,step\n", "got a text that is none of these"},
      {whole.substr(0, whole.size() / 2), "ends too early"},
      {"{\"traceEvents\":[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":"
       "\"python\"}}]}",
       "got \"python\""},
      {"{\"traceEvents\":[]}", "without tasks"},
  };
  for (const auto& [text, expected] : cases) {
    std::ofstream{trace} << text;
    require_report_refused(run_program({RRFP_REPORT, trace, "--out", page}),
                           {trace, "expected a trace of rrfp-node run --trace", expected});
    CHECK(count_files(folder / "") == 1);
  }
  require_report_refused(run_program({RRFP_REPORT, folder / "absent.json", "--out", page}),
                         {"absent.json", "No such file"});
}

TEST_CASE("a page that cannot be written is refused, and the old file stays") {
  const scratch_folder folder;
  require_report_refused(
      run_program({RRFP_REPORT, quickstart_trace(), "--out", "/nonexistent/report.html"}),
      {"--out", "/nonexistent/report.html", "No such file"});
  require_report_refused(run_program({RRFP_REPORT, quickstart_trace(), "--out", folder / ""}),
                         {"--out", "got a folder"});
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  require_report_refused(run_program({RRFP_REPORT, quickstart_trace(), "--out", pipe}),
                         {"--out", pipe, "device or pipe"});
  CHECK(std::filesystem::is_fifo(pipe));
  const auto page = folder / "report.html";
  std::ofstream{page} << "before";
  require_report_refused(run_program({RRFP_REPORT, "/dev/null", "--out", page}), {"/dev/null"});
  CHECK(text_of(page) == "before");
}

TEST_CASE("wrong arguments are refused, and --help lists the right ones") {
  const scratch_folder folder;
  const auto page = folder / "report.html";
  const auto refused = [&](const std::string& option, const std::string& value) {
    return run_program({RRFP_REPORT, quickstart_trace(), "--out", page, option, value});
  };
  require_report_refused(refused("--steps", "two"), {"--steps", "FIRST:LAST", "\"two\""});
  require_report_refused(refused("--steps", "2:1"), {"--steps", "\"2:1\""});
  require_report_refused(refused("--steps", "7"), {"step from 1 to 3", "got 7"});
  require_report_refused(refused("--steps", "7:8"), {"step from 1 to 3", "got 7:8"});
  require_report_refused(refused("--step", "two"), {"--step: expected a step's number", "\"two\""});
  require_report_refused(refused("--step", "7"), {"--step: expected a step from 1 to 3", "got 7"});
  require_report_refused(refused("--svg", "/nonexistent/step.svg"),
                         {"--svg", "/nonexistent/step.svg", "No such file"});
  const auto outside = run_program({RRFP_REPORT, quickstart_trace(), "--svg", folder / "step.svg",
                                    "--steps", "2:3", "--step", "1"});
  require_report_refused(outside, {"--step: expected a step of --steps 2:3, got 1"});
  const auto alone = run_program({RRFP_REPORT, quickstart_trace(), "--run", "ready BFW",
                                  "--profile", folder / "run.csv", "--step", "1"});
  require_report_refused(alone, {"--step: expected --svg or --out as well"});
  CHECK(count_files(folder / "") == 0);
  require_report_refused(refused("--run", "gpipe"), {"--run", "in-order 1F1B", "\"gpipe\""});
  CHECK(run_program({RRFP_REPORT}).code == 2);
  CHECK(run_program({RRFP_REPORT, quickstart_trace()}).code == 2);
  CHECK(run_program({RRFP_REPORT, "--nonsense"}).code == 2);
  const auto help = run_program({RRFP_REPORT, "--help"});
  CHECK(help.code == 0);
  for (const std::string option : {"trace", "--out", "--svg", "--step", "--profile",
                                   "--backward-share", "--steps", "--run", "--title", "--version"})
    CHECK_THAT(help.out, Contains(option));
}
