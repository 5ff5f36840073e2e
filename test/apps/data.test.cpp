// Jobs with data other than plain text: training, the data report, refusals.
#include <catch2/catch.hpp>

#include <algorithm>
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

std::string with_lines(const std::string& file, const std::string& lines) {
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
  with_lines(
      folder / "a.json",
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
  CHECK(o.out.find("data: ") == o.out.rfind("data: "));  // once for both runs
  CHECK_THAT(o.out, Contains("losses and weights are equal to the last bit"));
}

TEST_CASE("samples that are left out are reported once") {
  const scratch_folder folder;
  with_lines(folder / "a.jsonl", "{\"text\": \"good\"}\nbad\n{\"text\": \"\"}\n");
  const auto job = job_of(folder / "job.toml", "jsonl = \"a.jsonl\"\nbad_samples = \"skip\"\n");
  const auto o = run_program({RRFP_NODE, "check", job});
  INFO(o.err);
  CHECK(o.code == 0);
  CHECK_THAT(o.out, Contains("data: 1 document in 1 file, 2 left out: 1 not JSON, 1 empty text\n"));
}

TEST_CASE("wrong data is refused with the lines of the job and of the data") {
  const scratch_folder folder;
  const auto check = [&](const std::string& data, const std::string& expected) {
    const auto job = job_of(folder / "job.toml", data);
    for (const std::string command : {"run", "check"}) {
      const auto o = run_program({RRFP_NODE, command, job, "--set", "vision.layers=1"});
      CHECK(o.code == 2);
      CHECK(o.out.empty());
      CHECK(o.err == "rrfp-node: " + job + ":15: data." + expected + "\n");
    }
  };
  const auto lines = with_lines(folder / "a.jsonl", "{\"text\": \"good\"}\n{\"txt\": 1}\n");
  check("jsonl = \"a.jsonl\"\n",
        "jsonl: " + lines + ":2: \"text\": expected a string, got an object without that key");
  const auto images =
      with_lines(folder / "b.jsonl", "{\"text\": \"a picture\", \"image\": \"none.png\"}\n");
  check("images = \"b.jsonl\"\n", "images: " + images + ":1: " + (folder / "none.png") +
                                      ": cannot be read: No such file or directory");
  const auto tokens = with_lines(folder / "a.bin", "xx");
  check("tokens = \"a.bin\"\n",
        "tokens: " + (folder / "a.json") + ": cannot be read: No such file or directory");
}

TEST_CASE("check decodes the images of the run within its time limit") {
  const scratch_folder folder;
  const auto shapes = folder / "shapes";
  REQUIRE(run_program({RRFP_SHAPES, shapes, "--samples", "20"}).code == 0);
  const auto job =
      job_of(folder / "job.toml", "images = \"" + shapes + "/train.jsonl\"\ntoo_long = \"cut\"\n");
  const auto check = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{RRFP_NODE,
                                       "check",
                                       job,
                                       "--set",
                                       "vision.layers=1",
                                       "--set",
                                       "model.context=512",
                                       "--set",
                                       "data.sequence_length=512"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  const auto whole = check({});
  INFO(whole.err);
  CHECK(whole.code == 0);
  CHECK_THAT(whole.out, Contains("\nimages: decoded all 20 samples\n"));
  CHECK_THAT(check({"--set", "train.steps=1"}).out, Contains("images: decoded all 8 samples"));
  CHECK_THAT(check({"--seconds", "0"}).out,
             Contains("images: decoded 0 of 20 samples in 0 s, in the order of the run; 20 are not "
                      "checked\n"));

  // The header of the file is good, the pixels are truncated.
  const auto images = std::filesystem::directory_iterator{shapes + "/images"};
  const auto cut = images->path();
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 30);
  const auto broken = check({});
  CHECK(broken.code == 2);
  CHECK(broken.out.empty());
  CHECK_THAT(broken.err,
             Contains("rrfp-node: " + job + ":15: data.images: " + shapes + "/train.jsonl:") &&
                 Contains(cut.string() + ": the PNG does not decode"));
  CHECK(std::count(broken.err.begin(), broken.err.end(), '\n') == 1);
  CHECK(check({"--seconds", "0"}).code == 0);
  // Without images, or after all were decoded when the data was opened, nothing is left to decode.
  CHECK(check({"--set", "data.blind=true"}).out.find("images:") == std::string::npos);
  const auto skipping = check({"--set", "data.bad_samples=skip"});
  CHECK(skipping.code == 0);
  CHECK_THAT(skipping.out, Contains("1 corrupt image"));
}
