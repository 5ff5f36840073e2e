/// Completed cells are kept, and incomplete lines are detected.
#include <catch2/catch.hpp>

#include <fstream>

#include "program.hpp"
#include "store.hpp"
#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

namespace {

using test::scratch_folder;
using test::text_of;

outcome some(double ms) {
  outcome o;
  o.step_ms = {ms, 1.0 / 3};
  o.idle = 0.25;
  o.blocked = 0.125;
  o.ranks = 0.1;
  o.gathering = 0.01;
  o.deferred = 0.003;
  o.agreement = {1000, 30};
  o.launch_gap_ms = 1.75;
  o.slots_peak = 7;
  o.activation_bytes_peak = 1'000'000'007;
  o.held_bytes_peak = 5'000'000'000;
  return o;
}

store opened(const std::string& folder) {
  auto s = store::open(folder);
  INFO((s ? "" : s.message()));
  REQUIRE(s.ok());
  return std::move(*s);
}

}  // namespace

TEST_CASE("an outcome reads back to the last bit") {
  const scratch_folder folder;
  REQUIRE(opened(folder / "out").add("a cell", some(0.1)));
  const auto again = opened(folder / "out");
  CHECK(again.notes().empty());
  CHECK(again.find("another cell") == nullptr);
  const auto* const o = again.find("a cell");
  REQUIRE(o != nullptr);
  CHECK(o->step_ms == some(0.1).step_ms);
  CHECK(o->idle == 0.25);
  CHECK(o->blocked == 0.125);
  CHECK(o->ranks == 0.1);
  CHECK(o->gathering == 0.01);
  CHECK(o->deferred == 0.003);
  CHECK(o->agreement == agreement_counts{1000, 30});
  CHECK(o->launch_gap_ms == 1.75);
  CHECK(o->slots_peak == 7);
  CHECK(o->activation_bytes_peak == 1'000'000'007);
  CHECK(o->held_bytes_peak == 5'000'000'000);
}

TEST_CASE("a file truncated at any byte keeps its complete lines and accepts new ones") {
  const scratch_folder folder;
  const auto path = folder / "cells.jsonl";
  {
    auto s = opened(folder / "");
    REQUIRE(s.add("first", some(1)));
    REQUIRE(s.add("second", some(2)));
  }
  const auto whole = text_of(path);
  const auto first_end = whole.find('\n') + 1;
  for (std::size_t size = first_end; size < whole.size(); size += 7) {
    std::ofstream{path} << whole.substr(0, size);
    auto s = opened(folder / "");
    CHECK(s.find("first") != nullptr);
    CHECK((s.find("second") != nullptr) == (size + 1 >= whole.size()));
    CHECK(s.notes().size() == (size == first_end || size + 1 >= whole.size() ? 0 : 1));
    if (!s.notes().empty())
      CHECK(s.notes()[0] == path + ":2: incomplete line, its cell runs again");
    REQUIRE(s.add("second", some(2)));
    CHECK(text_of(path).starts_with(whole));
  }
}

TEST_CASE("the checksum detects a changed digit") {
  const scratch_folder folder;
  REQUIRE(opened(folder / "").add("a cell", some(1.5)));
  auto text = text_of(folder / "cells.jsonl");
  text.replace(text.find("1.5"), 3, "1.4");
  std::ofstream{folder / "cells.jsonl"} << text;
  const auto s = opened(folder / "");
  CHECK(s.find("a cell") == nullptr);
  CHECK(s.notes().size() == 1);
}

TEST_CASE("a line of nested brackets counts as incomplete, and its cell runs again") {
  const scratch_folder folder;
  std::ofstream{folder / "cells.jsonl"} << "{\"cell\":\"a cell\",\"sum\":\"\",\"outcome\":"
                                        << std::string(100'000, '[') + std::string(100'000, ']')
                                        << "}\n";
  const auto s = opened(folder / "");
  CHECK(s.find("a cell") == nullptr);
  REQUIRE(s.notes().size() == 1);
  CHECK(s.notes()[0] == (folder / "cells.jsonl") + ":1: incomplete line, its cell runs again");
}

TEST_CASE("a file that is not ours, or that another process writes, is not changed") {
  const scratch_folder folder;
  std::ofstream{folder / "cells.jsonl"} << "my notes\n";
  const auto foreign = store::open(folder / "");
  REQUIRE_FALSE(foreign.ok());
  CHECK(foreign.message() ==
        folder / "cells.jsonl:1: expected the cells of an experiment, got another file");
  CHECK(text_of(folder / "cells.jsonl") == "my notes\n");

  const auto mine = opened(folder / "mine");
  const auto theirs = store::open(folder / "mine");
  REQUIRE_FALSE(theirs.ok());
  CHECK_THAT(theirs.message(), Catch::Contains("another process writes this file"));
}

TEST_CASE("a file of cells that is too large is refused") {
  const scratch_folder folder;
  std::filesystem::create_symlink("/dev/zero", folder / "cells.jsonl");
  const auto s = store::open(folder / "");
  REQUIRE_FALSE(s.ok());
  CHECK(s.message() ==
        (folder / "cells.jsonl") +
            ": expected cells of an experiment of at most 268435456 bytes, got more");
}

TEST_CASE("a folder that cannot be created is refused") {
  const auto s = store::open("/proc/nothing/here");
  REQUIRE_FALSE(s.ok());
  CHECK(s.message().starts_with("/proc/nothing/here: cannot create the folder: "));
}

}  // namespace rrfp::experiment
