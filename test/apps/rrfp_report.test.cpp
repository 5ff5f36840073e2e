// A page of real traces, and what is said when there is none to make.
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include <algorithm>

#include "program.hpp"

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

void require_refused(const outcome& o, const std::vector<std::string>& said) {
  INFO(o.err);
  CHECK(o.code == 2);
  CHECK(o.out.empty());
  CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
  CHECK_THAT(o.err, Catch::Matchers::StartsWith("rrfp-report: "));
  for (const auto& text : said) CHECK_THAT(o.err, Contains(text));
}

std::size_t files_in(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator{folder}, {}));
}

}  // namespace

TEST_CASE("two runs of a trace become one page") {
  const scratch_folder folder;
  const auto page = folder / "report.html";
  const auto o = run_program({RRFP_REPORT, quickstart_trace(), "--out", page});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains(page) && Contains("2 runs"));
  CHECK(files_in(folder / "") == 1);
  const auto html = text_of(page);
  CHECK_THAT(html, Contains("in-order 1F1B: 4 stages, 16 microbatches, 384 tasks; steps 0 to 2"));
  CHECK_THAT(html, Contains("Critical path") && Contains("speed-up"));
  CHECK(html.ends_with("</html>\n"));
}

TEST_CASE("steps and runs can be chosen, and two traces compared") {
  const scratch_folder folder;
  const auto page = folder / "report.html";
  const auto copy = folder / "again.json";
  std::filesystem::copy(quickstart_trace(), copy);
  const auto one = run_program({RRFP_REPORT, quickstart_trace(), "--run", "ready BFW", "--steps",
                                "1:2", "--title", "a <title>", "--out", page});
  INFO(one.err);
  REQUIRE(one.code == 0);
  CHECK_THAT(text_of(page), Contains("steps 1 to 2 of 0 to 2") && Contains("a &lt;title&gt;") &&
                                !Contains("1F1B"));
  const auto both = run_program({RRFP_REPORT, quickstart_trace(), copy, "--out", page});
  INFO(both.err);
  REQUIRE(both.code == 0);
  CHECK_THAT(both.out, Contains("4 runs"));
  CHECK_THAT(text_of(page), Contains("ready BFW (" + copy + ")"));
}

TEST_CASE("what is no trace is refused in one line and leaves no page") {
  const scratch_folder folder;
  const auto trace = folder / "trace.json";
  const auto page = folder / "report.html";
  const auto whole = text_of(quickstart_trace());
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "an empty file"},
      {"loss,step\n", "not JSON"},
      {whole.substr(0, whole.size() / 2), "ends too early"},
      {"{\"traceEvents\":[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":"
       "\"python\"}}]}",
       "got \"python\""},
      {"{\"traceEvents\":[]}", "without tasks"},
  };
  for (const auto& [text, said] : cases) {
    std::ofstream{trace} << text;
    require_refused(run_program({RRFP_REPORT, trace, "--out", page}),
                    {trace, "expected a trace of rrfp-node run --trace", said});
    CHECK(files_in(folder / "") == 1);
  }
  require_refused(run_program({RRFP_REPORT, folder / "absent.json", "--out", page}),
                  {"absent.json", "No such file"});
}

TEST_CASE("a page that cannot be written is refused and what was there stays") {
  const scratch_folder folder;
  require_refused(
      run_program({RRFP_REPORT, quickstart_trace(), "--out", "/nonexistent/report.html"}),
      {"--out", "/nonexistent/report.html", "No such file"});
  require_refused(run_program({RRFP_REPORT, quickstart_trace(), "--out", folder / ""}),
                  {"--out", "got a folder"});
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  require_refused(run_program({RRFP_REPORT, quickstart_trace(), "--out", pipe}),
                  {"--out", pipe, "device or pipe"});
  CHECK(std::filesystem::is_fifo(pipe));
  const auto page = folder / "report.html";
  std::ofstream{page} << "before";
  require_refused(run_program({RRFP_REPORT, "/dev/null", "--out", page}), {"/dev/null"});
  CHECK(text_of(page) == "before");
}

TEST_CASE("wrong arguments are refused and --help tells the right ones") {
  const scratch_folder folder;
  const auto page = folder / "report.html";
  const auto refused = [&](const std::string& option, const std::string& value) {
    return run_program({RRFP_REPORT, quickstart_trace(), "--out", page, option, value});
  };
  require_refused(refused("--steps", "two"), {"--steps", "FIRST:LAST", "\"two\""});
  require_refused(refused("--steps", "2:1"), {"--steps", "\"2:1\""});
  require_refused(refused("--steps", "7"), {"step from 0 to 2", "7:7"});
  require_refused(refused("--run", "gpipe"), {"--run", "in-order 1F1B", "\"gpipe\""});
  CHECK(run_program({RRFP_REPORT}).code == 2);
  CHECK(run_program({RRFP_REPORT, quickstart_trace()}).code == 2);
  CHECK(run_program({RRFP_REPORT, "--nonsense"}).code == 2);
  const auto help = run_program({RRFP_REPORT, "--help"});
  CHECK(help.code == 0);
  for (const std::string option : {"trace", "--out", "--steps", "--run", "--title", "--version"})
    CHECK_THAT(help.out, Contains(option));
}
