/// Failing outputs and system limits: no training ends without a message.
#include <sys/mman.h>
#include <cstdlib>

#include "json_lines.hpp"
#include "small_job.hpp"
#include "tiny_disk.hpp"

#include "../../apps/common/program.hpp"

#include <catch2/catch.hpp>

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

const std::string sixteen = RRFP_SOURCE "/apps/jobs/sixteen_stages.toml";

}  // namespace

TEST_CASE(
    "a training survives when the reader of its log closes the pipe, on one node and on two") {
  const small_job job;
  for (const int nodes : {1, 2}) {
    const auto training =
        job.run(nodes,
                {"train.steps=40", "checkpoint.dir=" + job.at("saved" + std::to_string(nodes)),
                 "checkpoint.every=1"},
                {"--json", job.at("out.jsonl")});
    const auto o = run_program(with_bash("\"$@\" | head -1; exit ${PIPESTATUS[0]}", training));
    INFO(o.out << o.err);
    CHECK(o.code == 0);
    CHECK(count_lines(o.out) == 1);
    CHECK(o.err.empty());
    CHECK(lines_of(job.at("out.jsonl")).back().at("ending") == "done");
  }
}

TEST_CASE("a closed standard error changes no exit code") {
  const small_job job;
  const auto o = run_program(with_bash("exec 2> >(exec true); sleep 0.2; exec \"$@\"",
                                       {RRFP_NODE, "run", job.path(), "--set", "train.lr=-1"}));
  CHECK(o.code == 2);
}

TEST_CASE("outputs do not get the numbers of closed standard descriptors") {
  const small_job job;
  for (const int nodes : {1, 2}) {
    const auto saved = job.at("saved" + std::to_string(nodes));
    const auto training =
        job.run(nodes, {"checkpoint.dir=" + saved}, {"--json", job.at("out.jsonl")});
    const auto o = run_program(with_bash("exec \"$@\" <&- >&- 2>&-", training));
    CHECK(o.code == 0);
    CHECK(lines_of(job.at("out.jsonl")).back().at("ending") == "done");
    CHECK(text_of(saved + "/.lock").empty());
  }
}

TEST_CASE("a full standard output ends every program with code 1 and one line") {
  const small_job job;
  const auto trace = job.at("trace.json");
  const auto saved = job.at("saved");
  REQUIRE(run_program(job.run(1, {"checkpoint.dir=" + saved}, {"--trace", trace})).code == 0);
  const auto experiment = job.at("experiment.toml");
  std::ofstream{experiment} << "seeds = [1]\ntrain.steps = 1\n[[workload]]\nname = \"w\"\n"
                               "cost.preset = \"qwen3-1.7b-vit-h\"\npipeline.stages = 4\n"
                               "pipeline.microbatches = 8\n"
                               "[[run]]\nname = \"ready\"\ndispatch.policy = \"bfw\"\n";
  const std::vector<std::vector<std::string>> all{
      job.run(1),
      job.run(2),
      job.run(2, {"recovery.max_restarts=1"}),
      {RRFP_NODE, "check", job.path()},
      {RRFP_NODE, "keys"},
      {RRFP_NODE, "policies"},
      {RRFP_NODE, "--help"},
      {RRFP_NODE, "export", saved, "--out", job.at("model")},
      {RRFP_SIM, sixteen},
      {RRFP_REPORT, trace, "--out", job.at("page.html")},
      {RRFP_JITTER, experiment, "--cell", "0"},
      {RRFP_JITTER, "--keys"},
      {RRFP_SHAPES, job.at("pictures"), "--samples", "2"},
  };
  for (const auto& arguments : all) {
    const auto o = run_program(with_bash("exec \"$@\" > /dev/full", arguments));
    INFO(arguments[0] << " " << arguments[1] << ": " << o.err);
    CHECK(o.code == 1);
    CHECK(count_lines(o.err) == 1);
    CHECK_THAT(o.err, Contains(": standard output: cannot write: No space left on device"));
  }
  // The work was done nevertheless.
  CHECK(std::filesystem::exists(job.at("page.html")));
}

TEST_CASE("a long run continues when its log is full") {
  const small_job job;
  // More than any buffer holds.
  const auto training =
      job.run(1, {"train.steps=400", "checkpoint.every=1", "checkpoint.dir=" + job.at("saved")},
              {"--json", job.at("out.jsonl")});
  const auto o = run_program(with_bash("exec \"$@\" > /dev/full", training));
  INFO(o.err);
  CHECK(o.code == 1);
  CHECK(lines_of(job.at("out.jsonl")).back().at("ending") == "done");
}

TEST_CASE("a full disk leaves no part of a file, and exit code 1") {
  const small_job job;
  const auto trace = job.at("trace.json");
  REQUIRE(run_program(job.run(1, {}, {"--trace", trace})).code == 0);
  const tiny_disk disk{job.at("disk"), "size=4k"};
  if (!disk.is_mounted()) return;
  const auto full = job.at("disk/");
  const std::vector<std::vector<std::string>> all{
      {RRFP_SIM, job.path(), "--steps", "400", "--write-durations", full + "out"},
      {RRFP_SIM, job.path(), "--set", "pipeline.microbatches=2000", "--write-schedule",
       full + "out"},
      {RRFP_SIM, job.path(), "--steps", "400", "--json", full + "out"},
      {RRFP_REPORT, trace, "--out", full + "out"},
      job.run(1, {}, {"--trace", full + "out"}),
      {RRFP_SHAPES, full, "--samples", "20"},
  };
  for (const auto& arguments : all) {
    const auto o = run_program(arguments);
    INFO(arguments[0] << " " << arguments[3] << ": " << o.err);
    CHECK(o.code == 1);
    CHECK_THAT(o.err, Contains("/disk/") && Contains("No space left on device"));
    CHECK(count_files(full) == 0);
  }
}

TEST_CASE("an output overwrites no other file") {
  const small_job job;
  const auto trace = job.at("trace.json"), page = job.at("page.html"), csv = job.at("d.csv");
  for (const auto& name : {trace, page, csv}) std::ofstream{name + ".tmp"} << "another's";
  CHECK(run_program(job.run(1, {}, {"--trace", trace})).code == 0);
  CHECK(run_program({RRFP_REPORT, trace, "--out", page}).code == 0);
  CHECK(run_program({RRFP_SIM, job.path(), "--write-durations", csv}).code == 0);
  for (const auto& name : {trace, page, csv}) {
    CHECK(text_of(name + ".tmp") == "another's");
    CHECK(text_of(name).size() > 100);
  }
}

TEST_CASE("a trace may be compressed") {
  const small_job job;
  const auto trace = job.at("trace.json");
  REQUIRE(run_program(job.run(1, {}, {"--trace", trace})).code == 0);
  REQUIRE(std::system(("gzip -f " + trace).c_str()) == 0);
  const auto o = run_program({RRFP_REPORT, trace + ".gz", "--out", job.at("page.html")});
  INFO(o.err);
  CHECK(o.code == 0);
}

TEST_CASE("an output replaces neither an input nor another output") {
  const small_job job;
  const auto trace = job.at("trace.json"), page = job.at("page.html"), own = job.path();
  REQUIRE(run_program(job.run(1, {}, {"--trace", trace})).code == 0);
  const auto job_text = text_of(own), trace_text = text_of(trace);
  const std::vector<std::vector<std::string>> wrong{
      job.run(1, {}, {"--json", own}),
      job.run(1, {}, {"--trace", own}),
      job.run(1, {}, {"--json", page, "--trace", page}),
      {RRFP_SIM, own, "--json", own},
      {RRFP_SIM, own, "--json", "page of no run.html", "--write-durations",
       "./page of no run.html"},
      {RRFP_SIM, "--from", trace, "--json", trace},
      {RRFP_REPORT, trace, "--out", trace},
      {RRFP_REPORT, trace, "--out", page, "--svg", page}};
  for (const auto& command : wrong) {
    const auto o = run_program(command);
    INFO(o.out << o.err);
    CHECK(o.code == 2);
    CHECK_THAT(o.err,
               Contains(": expected another file than ") && Contains(", which it would replace\n"));
  }
  CHECK(text_of(own) == job_text);
  CHECK(text_of(trace) == trace_text);
  CHECK(!std::filesystem::exists(page));
}

TEST_CASE("names and paths that are not UTF-8 are refused by name") {
  const small_job job;
  const auto check = [](const std::vector<std::string>& arguments, const std::string& expected) {
    const auto o = run_program(arguments);
    INFO(o.err);
    CHECK(o.code == 2);
    CHECK(count_lines(o.err) == 1);
    CHECK_THAT(o.err, Contains(expected) && Contains("expected UTF-8, got the byte 0xFF at "));
  };
  const auto odd = job.at("odd\xff.toml");
  std::filesystem::copy_file(job.path(), odd);
  for (const std::string command : {"run", "check"}) {
    check({RRFP_NODE, command, odd}, "odd\xff.toml: name: ");
    check({RRFP_NODE, command, job.path(), "--set", "name=\xff"}, "--set \"name=\\xFF\": ");
    check({RRFP_NODE, command, job.path(), "--set", "checkpoint.dir=/tmp/\xff"},
          "checkpoint.dir=/tmp/\\xFF\": ");
  }
  check({RRFP_SIM, odd}, "odd\xff.toml: name: ");
  const auto experiment = job.at("e\xff.toml");
  std::ofstream{experiment} << "[[workload]]\npreset = \"qwen3-1.7b-vit-h\"\n[[run]]\n"
                               "policy = \"bfw\"\n";
  check({RRFP_JITTER, experiment, "--cell", "0"}, "e\xff.toml: the path of an experiment: ");
}

TEST_CASE("file names that are not UTF-8 may appear in the log and on a page") {
  const small_job job;
  std::filesystem::create_directory(job.at("odd\xff"));
  const auto trace = job.at("odd\xff/trace.json");
  CHECK(run_program(job.run(1, {}, {"--trace", trace})).code == 0);
  const auto page = job.at("page.html");
  const auto o = run_program({RRFP_REPORT, trace, trace, "--out", page, "--title", "\xff"});
  INFO(o.err);
  CHECK(o.code == 0);
}

TEST_CASE(
    "too little shared memory is reported with its size and a remedy, and is not a lost node") {
  const small_job job;
  if (const tiny_disk probe{job.at("probe"), "size=1m"}; !probe.is_mounted()) return;
  const auto with_shared_memory = [&](const std::string& size, const std::string& setting) {
    return run_program(with_bash("exec unshare -m bash -c 'mount -t tmpfs -o size=" + size +
                                     " tmpfs /dev/shm; exec \"$@\"' bash \"$@\"",
                                 job.run(2, {setting})));
  };
  // Too little for both, then for the second of them.
  for (const std::string size : {"1m", "6m"}) {
    const auto o = with_shared_memory(size, "train.steps=1");
    INFO(o.out << o.err);
    CHECK(o.code == 2);
    CHECK(count_lines(o.err) == 1);
    CHECK_THAT(o.err, Contains("shared memory: /dev/shm has ") &&
                          Contains("expected at least 8.2 MiB for 2 nodes") &&
                          Contains("--shm-size") && Contains("transport.tls"));
  }
  CHECK(with_shared_memory("10m", "train.steps=1").code == 0);
  CHECK(with_shared_memory("1m", "transport.tls=tcp,self").code == 0);
}

TEST_CASE("too few file descriptors are reported with the limit, and a low soft limit is raised") {
  const small_job job;
  const auto o = run_program(with_bash("ulimit -n 24; exec \"$@\"", job.run(2)));
  INFO(o.out << o.err);
  CHECK(o.code == 2);
  CHECK(count_lines(o.err) == 1);
  CHECK_THAT(o.err, Contains("file descriptors: a process may have 24, expected at least ") &&
                        Contains("ulimit -n"));
  CHECK(run_program(with_bash("ulimit -Sn 24; exec \"$@\"", job.run(2, {"train.steps=1"}))).code ==
        0);
}

TEST_CASE("a program that reads a truncated mapped file names the file") {
  const scratch_folder folder;
  const auto file = folder / "mapped";
  std::ofstream{file} << std::string(1 << 16, 'x');
  static const char* path;
  path = file.c_str();
  const auto err = folder / "err";
  std::fflush(nullptr);
  const auto child = ::fork();
  if (child == 0) {
    if (std::freopen(err.c_str(), "w", stderr) == nullptr) ::_exit(127);
    rrfp::apps::run_program("reader", 0, nullptr, [](int, char**) {
      auto* const in = std::fopen(path, "r");
      const auto* const bytes = static_cast<const volatile char*>(
          ::mmap(nullptr, 1 << 16, PROT_READ, MAP_PRIVATE, ::fileno(in), 0));
      if (::truncate(path, 10) != 0) return 126;
      return static_cast<int>(bytes[40'000]);
    });
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  REQUIRE(WIFEXITED(state));
  CHECK(WEXITSTATUS(state) == 2);
  CHECK(text_of(err) ==
        "reader: " + file +
            ": cannot read: the file was truncated, or its disk failed, while it was in use\n");
}
