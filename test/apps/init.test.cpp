// A job file from `init` passes `check` and trains; init never overwrites a file.
#include <catch2/catch.hpp>

#include <cstdint>

#include "program.hpp"
#include "refused.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

outcome init(const std::string& file, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {RRFP_NODE, "init", file});
  return run_program(options);
}

/// The commands that `init` proposes succeed.
void require_trains(const std::string& file, std::vector<std::string> settings = {}) {
  const auto checked = run_program({RRFP_NODE, "check", file});
  INFO(checked.out << checked.err);
  REQUIRE(checked.code == 0);
  settings.insert(settings.begin(), {RRFP_NODE, "run", file, "--set", "train.steps=1"});
  const auto ran = run_program(settings);
  INFO(ran.out << ran.err);
  REQUIRE(ran.code == 0);
  CHECK_THAT(ran.out, Contains("weights"));
}

void write_tokens(const std::string& stem) {
  std::ofstream tokens{stem + ".bin", std::ios::binary};
  for (std::uint32_t i = 0; i < 4000; ++i) {
    const auto id = static_cast<std::uint16_t>(i * i % 251);
    tokens.write(reinterpret_cast<const char*>(&id), sizeof id);
  }
  std::ofstream{stem + ".json"} << R"({"format": "rrfp-tokens", "version": 1, "dtype": "uint16",
    "tokens": 4000, "vocabulary": 251})";
}

}  // namespace

TEST_CASE("a job from init trains on the default text and on given text") {
  const scratch_folder folder;
  const auto made = init(folder / "job.toml");
  INFO(made.err);
  REQUIRE(made.code == 0);
  CHECK(made.out == "wrote " + folder / "job.toml" + "\nnext:\n  " RRFP_NODE " check " +
                        folder / "job.toml" + "\n  " RRFP_NODE " run " + folder / "job.toml" +
                        "\n");
  require_trains(folder / "job.toml");

  std::filesystem::create_directory(folder / "jobs");
  std::string documents;
  for (int n = 0; n < 40; ++n) documents += "{\"text\": \"one document of a few words\"}\n";
  std::ofstream{folder / "documents.jsonl"} << documents;
  REQUIRE(init(folder / "jobs/mine.toml", {"--from", folder / "documents.jsonl"}).code == 0);
  require_trains(folder / "jobs/mine.toml");
}

TEST_CASE("a job from init trains on generated images and on images from files") {
  const scratch_folder folder;
  REQUIRE(init(folder / "shapes.toml", {"--data", "images"}).code == 0);
  require_trains(folder / "shapes.toml");
  REQUIRE(run_program({RRFP_SHAPES, folder / "shapes", "--samples", "40"}).code == 0);
  REQUIRE(init(folder / "files.toml", {"--data", "images", "--from", folder / "shapes/train.jsonl"})
              .code == 0);
  require_trains(folder / "files.toml");
}

TEST_CASE("a job from init continues training a pretrained model") {
  const scratch_folder folder;
  REQUIRE(init(folder / "first.toml").code == 0);
  require_trains(folder / "first.toml", {"--set", "checkpoint.dir=" + folder / "saved"});
  const auto model = folder / "model";
  REQUIRE(run_program({RRFP_NODE, "export", folder / "saved", "--out", model}).code == 0);
  write_tokens(folder / "tokens");

  const auto named = init(folder / "job.toml", {"--data", "pretrained", "--model", model, "--from",
                                                folder / "tokens.bin"});
  INFO(named.err);
  REQUIRE(named.code == 0);
  CHECK_THAT(named.out, !Contains("tokenize"));
  require_trains(folder / "job.toml");

  const auto open = init(folder / "open.toml", {"--data", "pretrained"});
  REQUIRE(open.code == 0);
  CHECK_THAT(open.out, Contains("pretrained = ") && Contains("scripts/tokenize"));
  // The default paths in the file match the names in this folder.
  require_trains(folder / "open.toml");
}

TEST_CASE("init knows JSON lines by name, by content and in folders, and trains on their texts") {
  const scratch_folder folder;
  std::filesystem::create_directory(folder / "documents");
  std::filesystem::create_directory(folder / "mixed");
  std::string documents;
  for (int n = 0; n < 40; ++n) documents += "{\"text\": \"one document of a few words\"}\n";
  for (const std::string name :
       {"a.JSONL", "b.ndjson", "c.json", "documents/d.jsonl", "documents/e.txt", "mixed/f.jsonl"})
    std::ofstream{folder / name} << documents;
  std::ofstream{folder / "mixed/g.txt"} << "plain text\n";
  std::ofstream{folder / "plain.txt"} << "plain text\n";
  int jobs = 0;
  for (const std::string name : {"a.JSONL", "b.ndjson", "c.json", "documents"}) {
    const auto file = folder / ("job" + std::to_string(jobs++) + ".toml");
    const auto o = init(file, {"--from", folder / name});
    INFO(name << o.err);
    REQUIRE(o.code == 0);
    CHECK_THAT(text_of(file), Contains("\njsonl = [") && !Contains("\ntext = ["));
    require_trains(file);
  }
  require_refused(init(folder / "mixed.toml", {"--from", folder / "mixed"}),
                  {"--from: expected text or JSON lines, got both", "g.txt", "f.jsonl"});
  require_refused(
      init(folder / "mixed.toml", {"--from", folder / "plain.txt", "--from", folder / "a.JSONL"}),
      {"--from: expected text or JSON lines, got both", "plain.txt", "a.JSONL"});
}

TEST_CASE("init overwrites nothing and refuses bad input in one line") {
  const scratch_folder folder;
  const auto file = folder / "job.toml";
  std::ofstream{file} << "before";
  require_refused(init(file), {file, "already exists"});
  CHECK(text_of(file) == "before");
  const auto fresh = folder / "new.toml";
  require_refused(init(folder / "none/job.toml"), {"none/job.toml", "No such file"});
  require_refused(init(folder / ""), {"Is a directory"});
  require_refused(init(fresh, {"--data", "audio"}),
                  {"--data: expected text, images or pretrained, got \"audio\""});
  require_refused(init(fresh, {"--from", folder / "absent"}),
                  {"--from", "absent", "does not exist"});
  require_refused(init(fresh, {"--data", "pretrained", "--model", folder / "absent"}),
                  {"--model", "absent", "does not exist"});
  require_refused(init(fresh, {"--model", folder / ""}), {"--model: expected --data pretrained"});
  require_refused(init(fresh, {"--data", "pretrained", "--from", file}),
                  {"--from: expected NAME.bin", "job.toml"});
  CHECK(!std::filesystem::exists(fresh));
}
