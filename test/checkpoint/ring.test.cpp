/// The checkpoint folder: after any crash its checkpoints are complete, and the newest usable one
/// is found.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/checkpoint/ring.hpp>

#include "program.hpp"

namespace rrfp::checkpoint::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using names = std::vector<std::string>;
using rrfp::test::scratch_folder;
using rrfp::test::text_of;

void write(const std::string& path, const std::string& text) { std::ofstream{path} << text; }

names names_in(const std::string& dir) {
  names all;
  for (const auto& entry : fs::directory_iterator{dir})
    if (entry.path().filename() != ".lock") all.push_back(entry.path().filename());
  std::sort(all.begin(), all.end());
  return all;
}

/// Writes two files and returns the manifest that lists them.
manifest write_files(const std::string& dir, std::uint64_t step) {
  manifest m;
  m.step = step;
  for (const std::uint32_t rank : {0U, 1U}) {
    const auto name = file_name(stage_id{0}, rank_id{rank});
    const auto text = "step " + std::to_string(step) + " rank " + std::to_string(rank);
    write(folder_of_save(dir, step) + "/" + name, text);
    m.files.push_back({name, text.size(), checksum_of(text)});
  }
  return m;
}

void save(ring& r, std::uint64_t step) {
  REQUIRE(r.begin(step));
  REQUIRE(r.commit(write_files(r.dir(), step)));
}

std::unique_ptr<ring> open(const std::string& dir, std::uint32_t keep) {
  auto opened = ring::open(dir, keep);
  REQUIRE(opened);
  return std::move(*opened);
}

/// The step that is found (0: none) and the reasons why newer ones are skipped.
struct choice {
  std::uint64_t step = 0;
  names skipped;
};

choice newest(const std::string& dir, verification level = verification::checksums) {
  const auto s = find_newest(dir, level);
  REQUIRE(s);
  return {s->newest ? s->newest->contents.step : 0, s->skipped};
}

TEST_CASE("Folder names sort by step, however many digits the step has") {
  CHECK(folder_name(42) == "step-00000042");
  CHECK(folder_name(1234567890123) == "step-1234567890123");
  CHECK(file_name(stage_id{3}, rank_id{1}) == "stage-003-rank-01.safetensors");
}

TEST_CASE("The newest few stay, and older ones are removed once the new one is complete") {
  const scratch_folder folder;
  const auto dir = folder / "ring";
  CHECK(newest(dir).step == 0);
  const auto r = open(dir, 2);
  for (const std::uint64_t step : {1U, 5U, 10U}) save(*r, step);
  CHECK(names_in(dir) == names{"step-00000005", "step-00000010"});
  CHECK(newest(dir).step == 10);
  CHECK(newest(dir).skipped.empty());
  CHECK(names_in(dir + "/step-00000010") ==
        names{"manifest.json", "stage-000-rank-00.safetensors", "stage-000-rank-01.safetensors"});
  // Steps compare as numbers, not as strings.
  save(*r, 123456789);
  CHECK(newest(dir).step == 123456789);
}

TEST_CASE("An incomplete save is not a checkpoint, and the next save removes it") {
  const scratch_folder folder;
  const auto r = open(folder / "ring", 3);
  save(*r, 1);
  REQUIRE(r->begin(2));
  write_files(r->dir(), 2);
  CHECK(newest(r->dir()).step == 1);
  CHECK(newest(r->dir()).skipped.empty());
  CHECK(names_in(r->dir()) == names{".step-00000002.tmp", "step-00000001"});
  save(*r, 3);
  CHECK(names_in(r->dir()) == names{"step-00000001", "step-00000003"});
  REQUIRE(r->begin(4));
  r->abandon(4);
  CHECK(names_in(r->dir()) == names{"step-00000001", "step-00000003"});
}

TEST_CASE(
    "A checkpoint is committed only if every file is there with the size that its rank reported") {
  const scratch_folder folder;
  const auto r = open(folder / "ring", 1);
  save(*r, 1);
  for (const bool missing : {true, false}) {
    REQUIRE(r->begin(2));
    const auto m = write_files(r->dir(), 2);
    const auto file = folder_of_save(r->dir(), 2) + "/" + m.files[1].name;
    if (missing)
      fs::remove(file);
    else
      write(file, "short");
    const auto done = r->commit(m);
    REQUIRE_FALSE(done.ok());
    CHECK(done.message() == file +
                                ": expected the 13 bytes that its rank wrote: do all nodes "
                                "share this folder?");
    CHECK(newest(r->dir()).step == 1);
  }
}

TEST_CASE("A torn, altered or foreign checkpoint is named, and the one before it is used") {
  const scratch_folder folder;
  const auto r = open(folder / "ring", 5);
  for (const std::uint64_t step : {1U, 2U, 3U}) save(*r, step);
  const auto at = r->dir() + "/step-00000003";
  const auto file = at + "/stage-000-rank-01.safetensors";
  const auto good = text_of(at + "/manifest.json");

  const auto falls_back = [&](const std::string& why) {
    const auto c = newest(r->dir());
    CHECK(c.step == 2);
    REQUIRE(c.skipped.size() == 1);
    CHECK_THAT(c.skipped[0], Contains(why));
    CHECK(c.skipped[0].find('\n') == std::string::npos);
  };
  SECTION("no manifest") {
    fs::remove(at + "/manifest.json");
    falls_back(at + ": not a checkpoint: it has no manifest.json");
  }
  SECTION("a truncated manifest") {
    write(at + "/manifest.json", good.substr(0, good.size() / 2));
    falls_back(at + "/manifest.json: not JSON at byte ");
  }
  SECTION("a manifest of brackets") {
    write(at + "/manifest.json", "{\"format\": 1, \"xxh64\": \"\", \"step\": " +
                                     std::string(100'000, '[') + std::string(100'000, ']') + "}");
    falls_back(at + "/manifest.json: nested deeper than 64 at byte ");
  }
  SECTION("an altered manifest") {
    auto text = good;
    text.replace(text.find("\"step\": 3"), 9, "\"step\": 4");
    write(at + "/manifest.json", text);
    falls_back(at + "/manifest.json: altered: its checksum does not match");
  }
  SECTION("another format") {
    auto text = good;
    text.replace(text.find("\"format\": 1"), 11, "\"format\": 9");
    write(at + "/manifest.json", text);
    falls_back(at + "/manifest.json: expected format 1, got 9");
  }
  SECTION("another step") {
    fs::copy_file(r->dir() + "/step-00000001/manifest.json", at + "/manifest.json",
                  fs::copy_options::overwrite_existing);
    falls_back(at + "/manifest.json: expected step 3, got 1");
  }
  SECTION("a file that is missing") {
    fs::remove(file);
    falls_back(file + ": No such file or directory");
  }
  SECTION("a truncated file") {
    write(file, "step 3 rank ");
    falls_back(file + ": expected 13 bytes, got 12");
  }
  SECTION("a file with one altered bit") {
    write(file, "step 3 rank 0");
    falls_back(file + ": altered: expected xxh64 ");
    // Sizes alone do not detect it.
    CHECK(newest(r->dir(), verification::sizes).step == 3);
  }
  SECTION("all of them") {
    for (const std::string step : {"1", "2", "3"})
      fs::remove(r->dir() + "/step-0000000" + step + "/manifest.json");
    const auto c = newest(r->dir());
    CHECK(c.step == 0);
    CHECK(c.skipped.size() == 3);
  }
}

TEST_CASE("An unusable checkpoint is replaced when its step is saved again") {
  const scratch_folder folder;
  const auto r = open(folder / "ring", 3);
  for (const std::uint64_t step : {1U, 2U}) save(*r, step);
  fs::remove(r->dir() + "/step-00000002/manifest.json");
  save(*r, 2);
  CHECK(newest(r->dir()).step == 2);
  CHECK(names_in(r->dir()) == names{"step-00000001", "step-00000002"});
}

TEST_CASE("Earlier checkpoints are set aside, even twice within a second") {
  const scratch_folder folder;
  const auto r = open(folder / "ring", 3);
  CHECK_FALSE(*r->set_aside());
  std::vector<std::string> aside;
  for (int i = 0; i < 2; ++i) {
    save(*r, 7);
    const auto moved = r->set_aside();
    REQUIRE(moved);
    REQUIRE(moved->has_value());
    aside.push_back(**moved);
    CHECK(newest(r->dir()).step == 0);
    CHECK(newest(aside.back()).step == 7);
  }
  CHECK(aside[0] != aside[1]);
}

TEST_CASE("A folder has one writer, and is free again when that writer is gone") {
  const scratch_folder folder;
  const auto dir = folder / "ring";
  {
    const auto first = open(dir, 3);
    const auto second = ring::open(dir, 3);
    REQUIRE_FALSE(second.ok());
    CHECK(second.message() == dir + ": another run is writing its checkpoints here");
  }
  CHECK(ring::open(dir, 3).ok());
}

TEST_CASE("One that tries later writes nothing until the folder is free") {
  const scratch_folder folder;
  const auto dir = folder / "ring";
  auto first = std::make_optional(open(dir, 3));
  REQUIRE((*first)->begin(7));
  const auto second = ring::open(dir, 3, {}, if_locked::try_later).value();
  CHECK(second->begin(7).message() == dir + ": another run is writing its checkpoints here");
  second->abandon(7);
  second->remove_older(1);
  CHECK(std::filesystem::exists(folder_of_save(dir, 7)));
  first.reset();
  CHECK(second->begin(8).ok());
  CHECK_FALSE(ring::open(dir, 3).ok());
}

TEST_CASE("One that is patient gets the folder when its writer has gone") {
  const scratch_folder folder;
  const auto dir = folder / "ring";
  auto first = std::make_optional(open(dir, 3));
  std::thread writer{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    first.reset();
  }};
  const auto second = ring::open(dir, 3, std::chrono::seconds{30});
  writer.join();
  CHECK(second.ok());
}

TEST_CASE("A folder that cannot be created is an error") {
  const scratch_folder folder;
  write(folder / "file", "x");
  const auto opened = ring::open(folder / "file", 3);
  REQUIRE_FALSE(opened.ok());
  CHECK_THAT(opened.message(), Contains(folder / "file" + ": cannot create the folder: "));
  // The ring ignores other entries in the folder.
  const auto r = open(folder / "ring", 1);
  for (const std::string name : {"step-7", "step-00000007x", "notes", "step-"})
    fs::create_directory(r->dir() + "/" + name);
  save(*r, 1);
  CHECK(newest(r->dir()).step == 1);
  CHECK(names_in(r->dir()).size() == 5);
}

}  // namespace
}  // namespace rrfp::checkpoint::test
