// Jobs on other data than plain text: what is trained on, what is said of it, what is refused.
#include <catch2/catch.hpp>

#include <cstdint>

#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

/// A job of two stages; the lines of [data] come last.
std::string job_of(const std::string& file, const std::string& data) {
  std::ofstream{file} << "[pipeline]\nstages = 2\nmicrobatches = 4\n[model]\nlayers = 2\nhidden = "
                         "16\nheads = 2\ncontext = 32\nvocabulary = 258\n[train]\nsteps = "
                         "3\n[data]\nmicrobatch_size = 2\nsequence_length = 32\n"
                      << data;
  return file;
}

std::string lines_of(const std::string& file, const std::string& lines) {
  std::ofstream{file} << lines;
  return file;
}

}  // namespace

TEST_CASE("a job trains on windows of a token file, with the same bits in every mode") {
  const scratch_folder folder;
  {
    std::ofstream tokens{folder / "a.bin", std::ios::binary};
    for (std::uint32_t i = 0; i < 1000; ++i) {
      const auto id = static_cast<std::uint16_t>(i * i % 251);
      tokens.write(reinterpret_cast<const char*>(&id), sizeof id);
    }
  }
  lines_of(folder / "a.json",
           "{\"format\": \"rrfp-tokens\", \"version\": 1, \"dtype\": \"uint16\", \"tokens\": 1000, "
           "\"vocabulary\": 251}");
  const auto job = job_of(folder / "job.toml",
                          "tokens = \"a.bin\"\n[[compare]]\nname = \"a\"\ndispatch.mode = "
                          "\"in-order\"\ndispatch.policy = \"one_f_one_b\"\n[[compare]]\nname = "
                          "\"b\"\ndispatch.mode = \"ready\"\n");
  const auto o = run_program({RRFP_NODE, "run", job});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("data: 1000 tokens, 31 samples\n"));
  CHECK(o.out.find("data: ") == o.out.rfind("data: "));  // of both runs
  CHECK_THAT(o.out, Contains("losses and weights are equal to the last bit"));
}

TEST_CASE("what is left out of the data is told once") {
  const scratch_folder folder;
  lines_of(folder / "a.jsonl", "{\"text\": \"good\"}\nbad\n{\"text\": \"\"}\n");
  const auto job = job_of(folder / "job.toml", "jsonl = \"a.jsonl\"\nbad_samples = \"skip\"\n");
  const auto o = run_program({RRFP_NODE, "check", job});
  INFO(o.err);
  CHECK(o.code == 0);
  CHECK_THAT(o.out, Contains("data: 1 document in 1 file, 2 left out: 1 not JSON, 1 empty text\n"));
}

TEST_CASE("wrong data is refused with the lines of the job and of the data") {
  const scratch_folder folder;
  const auto check = [&](const std::string& data, const std::string& said) {
    const auto job = job_of(folder / "job.toml", data);
    for (const std::string command : {"run", "check"}) {
      const auto o = run_program({RRFP_NODE, command, job, "--set", "vision.layers=1"});
      CHECK(o.code == 2);
      CHECK(o.out.empty());
      CHECK(o.err == "rrfp-node: " + job + ":15: data." + said + "\n");
    }
  };
  const auto lines = lines_of(folder / "a.jsonl", "{\"text\": \"good\"}\n{\"txt\": 1}\n");
  check("jsonl = \"a.jsonl\"\n",
        "jsonl: " + lines + ":2: \"text\": expected a string, got an object without that key");
  const auto images =
      lines_of(folder / "b.jsonl", "{\"text\": \"a picture\", \"image\": \"none.png\"}\n");
  check("images = \"b.jsonl\"\n", "images: " + images + ":1: " + (folder / "none.png") +
                                      ": cannot be read: No such file or directory");
  const auto tokens = lines_of(folder / "a.bin", "xx");
  check("tokens = \"a.bin\"\n",
        "tokens: " + (folder / "a.json") + ": cannot be read: No such file or directory");
}
