// Bad input ends a program with exit code 2 and one line: where, what was expected, what was found.
// It leaves no files behind.
#include <catch2/catch.hpp>

#include <algorithm>

#include "program.hpp"
#include "refused.hpp"

#include <unistd.h>

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

const std::string job = RRFP_SOURCE "/apps/jobs/quickstart.toml";

struct wrong {
  std::vector<std::string> settings;
  std::vector<std::string> expected;
};

}  // namespace

TEST_CASE("a wrong setting is refused in one line") {
  const std::vector<wrong> cases{
      {{"pipeline.stagse=4"}, {"pipeline.stagse", "did you mean stages"}},
      {{"nonsense.key=4"}, {"nonsense"}},
      {{"pipeline.stages=\"four\""}, {"pipeline.stages", "integer", "string"}},
      {{"pipeline.stages=0"}, {"pipeline.stages", ">= 1", "0"}},
      {{"pipeline.microbatches=0"}, {"pipeline.microbatches", ">= 1", "0"}},
      {{"pipeline.stages=16"}, {"pipeline.stages", "model.layers", "16", "8"}},
      {{"dispatch.policy=best"}, {"dispatch.policy", "best", "one_f_one_b"}},
      {{"dispatch.mode=sometimes"}, {"dispatch.mode", "in-order", "ready", "sometimes"}},
      {{"data.text=[\"/nonexistent/corpus\"]"}, {"data.text", "/nonexistent/corpus"}},
      {{"data.sequence_length=4096"}, {"data.sequence_length", "model.context"}},
      {{"device.kind=tpu"}, {"device.kind", "cuda", "emulated", "tpu"}},
      {{"pipeline.tp=3"}, {"pipeline.tp", "model.heads", "4"}},
      {{"pipeline.nodes=[0, 1]"}, {"pipeline.nodes", "4 entries"}},
      {{"train.lr=-1"}, {"train.lr"}},
      {{"transport.listen=0.0.0.0"}, {"transport.listen", "transport.key_file", "loopback"}},
      {{"transport.inflight_bytes=1"}, {"transport.inflight_bytes", "activation", "got 1"}},
  };
  for (const auto& c : cases) {
    for (const std::string command : {"run", "check"}) {
      std::vector<std::string> arguments{RRFP_NODE, command, job};
      for (const auto& s : c.settings) arguments.insert(arguments.end(), {"--set", s});
      INFO(command << " --set " << c.settings[0]);
      require_refused(run_program(arguments), c.expected);
    }
  }
}

TEST_CASE("a missing GPU is refused with a message that names what is missing") {
  const auto o = run_program({RRFP_NODE, "check", job, "--set", "device.kind=cuda"});
  if (o.code == 0) {
    WARN("skipped: this machine has a CUDA device");
    return;
  }
  for (const std::string command : {"run", "check"})
    require_refused(run_program({RRFP_NODE, command, job, "--set", "device.kind=cuda"}),
                    {"--set device.kind=cuda: \"cuda\": this "});
}

TEST_CASE("errors in the file name file, line and key") {
  const scratch_folder folder;
  const auto file = folder / "job.toml";
  std::ofstream{file} << "[pipeline]\nstages = 2\nmicrobatches = 0\n";
  require_refused(run_program({RRFP_NODE, "check", file}), {file + ":3", "pipeline.microbatches"});
  std::ofstream{file} << "[pipeline\n";
  require_refused(run_program({RRFP_NODE, "check", file}), {file + ":1"});
  require_refused(run_program({RRFP_NODE, "run", folder / "absent.toml"}), {"absent.toml"});
}

TEST_CASE("an empty corpus and one that is too short are refused") {
  const scratch_folder folder;
  std::ofstream{folder / "empty.txt"}.flush();
  std::ofstream{folder / "short.txt"} << "a few bytes";
  for (const std::string name : {"empty.txt", "short.txt"})
    require_refused(
        run_program({RRFP_NODE, "run", job, "--set", "data.text=[\"" + (folder / name) + "\"]"}),
        {"data.text", name});
}

TEST_CASE("a bad corpus in the job file is refused with the line of its key") {
  const scratch_folder folder;
  std::ofstream{folder / "empty.txt"}.flush();
  const auto file = folder / "job.toml";
  std::ofstream{file} << "[pipeline]\nstages = 2\n\n[data]\ntext = [\"empty.txt\"]\n";
  for (const std::string command : {"run", "check"})
    require_refused(run_program({RRFP_NODE, command, file}), {file + ":5: data.text", "0 bytes"});
}

TEST_CASE("a fixed order that needs more bytes than dispatch.slot_bytes is refused") {
  const scratch_folder folder;
  const auto file = folder / "job.toml";
  std::ofstream{file}
      << "[pipeline]\nstages = 4\n[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n"
         "slot_bytes = 1\n[data]\ntext = [\"" RRFP_SOURCE "/README.md\"]\n";
  for (const std::string command : {"run", "check"})
    require_refused(run_program({RRFP_NODE, command, file}),
                    {file + ":6: dispatch.slot_bytes", "too small", "one_f_one_b"});
}

TEST_CASE("an infeasible table is refused with its cycle") {
  const scratch_folder folder;
  const auto table = folder / "table.csv";
  // Stage 0 wants the gradient of microbatch 0 before it sends microbatch 1; stage 1 wants it
  // after.
  std::ofstream{table} << "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n";
  const auto plain = folder / "plain.toml";
  std::ofstream{plain}
      << "[pipeline]\nstages = 2\nmicrobatches = 2\n[dispatch]\nmode = \"in-order\"\n"
      << "policy = \"table:" << table << "\"\n"
      << "[data]\ntext = [\"/usr/share/common-licenses\"]\n";
  require_refused(run_program({RRFP_NODE, "run", plain}),
                  {"cycle", "stage 0 stops at BW0", "stage 1 stops at F1"});
}

TEST_CASE("outputs that cannot be written are refused before training") {
  for (const std::string option : {"--json", "--trace"})
    require_refused(run_program({RRFP_NODE, "run", job, option, "/nonexistent/folder/file"}),
                    {option, "/nonexistent/folder/file", "No such file"});
}

TEST_CASE("refused runs leave no partial files") {
  const scratch_folder folder;
  const auto json = folder / "out.jsonl";
  const auto trace = folder / "trace.json";
  const auto o = run_program({RRFP_NODE, "run", job, "--json", json, "--trace", trace, "--set",
                              "data.text=[\"/nonexistent\"]"});
  CHECK(o.code == 2);
  CHECK(std::filesystem::is_empty(folder / ""));
}

TEST_CASE("wrong arguments are refused with exit code 2") {
  CHECK(run_program({RRFP_NODE}).code == 2);
  CHECK(run_program({RRFP_NODE, "fly"}).code == 2);
  CHECK(run_program({RRFP_NODE, "run"}).code == 2);
  CHECK(run_program({RRFP_NODE, "run", job, "--nonsense"}).code == 2);
  CHECK(run_program({RRFP_SIM, "/nonexistent.toml"}).code == 2);
}

TEST_CASE("a mistyped command, option or policy gets the one that was meant") {
  const auto require_meant = [](const std::vector<std::string>& arguments,
                                const std::string& meant) {
    const auto o = run_program(arguments);
    INFO(o.err);
    CHECK(o.code == 2);
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    CHECK_THAT(o.err, Contains("did you mean " + meant + "?"));
  };
  require_meant({RRFP_NODE, "chekc", job}, "check");
  require_meant({RRFP_NODE, "polices"}, "policies");
  require_meant({RRFP_NODE, "run", job, "--trce", "/tmp/t"}, "--trace");
  require_meant({RRFP_NODE, "run", job, "--local-node=2"}, "--local-nodes");
  require_meant({RRFP_NODE, "check", job, "-set", "train.steps=1"}, "--set");
  require_meant({RRFP_NODE, "--verson"}, "--version");
  require_meant({RRFP_SIM, job, "--step", "3"}, "--steps");
  require_meant({RRFP_REPORT, "t.json", "--profil", "x.csv"}, "--profile");
  require_meant({RRFP_JITTER, "e.toml", "--engin", "both"}, "--engine");
  require_meant({RRFP_SHAPES, "folder", "--sample", "3"}, "--samples");
  require_meant({RRFP_NODE, "check", job, "--set", "dispatch.policy=bwf"}, "bfw");
  const auto unlike = run_program({RRFP_NODE, "run", job, "--nonsense"});
  CHECK_THAT(unlike.err, !Contains("did you mean"));
}

TEST_CASE("the help of every program lists the exit codes") {
  for (const auto* program : {RRFP_NODE, RRFP_SIM, RRFP_JITTER, RRFP_REPORT, RRFP_SHAPES}) {
    const auto o = run_program({program, "--help"});
    INFO(program << "\n" << o.out << o.err);
    CHECK(o.code == 0);
    CHECK_THAT(o.out, Contains("Exit codes: 0 done"));
  }
}

TEST_CASE("too few threads are reported before a node starts, with the limit") {
  // The limit does not hold for root.
  const std::string other = ::geteuid() == 0 ? "setpriv --reuid 45678 --clear-groups " : "";
  const auto o =
      run_program({"/bin/bash", "-c", other + "bash -c 'ulimit -u 20; exec \"$@\"' limited \"$@\"",
                   "limited", RRFP_NODE, "run", job, "--set", "train.steps=1", "--set",
                   "pipeline.stages=8", "--set", "model.layers=8"});
  INFO(o.out << o.err);
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("rrfp-node: threads: cannot start ") && Contains("ulimit -u"));
}
