/// Atomic file writes: the file is complete or unchanged, and other files are untouched.
#include <catch2/catch.hpp>

#include <rrfp/io/atomic_file.hpp>

#include "program.hpp"

namespace rrfp::io {
namespace {

using test::count_files;
using test::scratch_folder;
using test::text_of;

status write(atomic_file& to, std::string_view text) {
  return to.write(std::as_bytes(std::span{text}));
}

}  // namespace

TEST_CASE("two atomic files for one path do not collide before the commit") {
  const scratch_folder folder;
  const auto path = folder / "x";
  const auto first = *atomic_file::create(path);
  const auto second = *atomic_file::create(path);
  REQUIRE(write(*first, "first"));
  REQUIRE(write(*second, "second"));
  REQUIRE(first->commit());
  CHECK(text_of(path) == "first");
  REQUIRE(second->commit());
  CHECK(text_of(path) == "second");
  CHECK(count_files(folder / "") == 1);
}

TEST_CASE("an existing file with the temporary name is not touched") {
  const scratch_folder folder;
  const auto path = folder / "x";
  std::string next;
  {
    const auto probe = *atomic_file::create(path);
    const auto number = probe->temporary_path().rfind('-') + 1;
    next = probe->temporary_path().substr(0, number) +
           std::to_string(std::stoi(probe->temporary_path().substr(number)) + 1) + ".tmp";
  }
  std::ofstream{next} << "another's";
  REQUIRE(write_atomically(path, "mine"));
  CHECK(text_of(next) == "another's");
  CHECK(text_of(path) == "mine");
}

TEST_CASE(
    "an unsynced write replaces the text in place, and its error and that of a sync name the "
    "file") {
  const scratch_folder folder;
  const auto path = folder / "x";
  REQUIRE(write_unsynced(path, "a long text"));
  REQUIRE(write_unsynced(path, "short"));
  REQUIRE(sync_file(path));
  CHECK(text_of(path) == "short");
  CHECK(count_files(folder / "") == 1);
  const auto lost = folder / "none/x";
  CHECK(write_unsynced(lost, "text").message() ==
        lost + ": cannot write: No such file or directory");
  CHECK(sync_file(lost).message() == lost + ": cannot write: No such file or directory");
  CHECK(write_unsynced("/dev/full", "text").message() ==
        "/dev/full: cannot write: No space left on device");
}

TEST_CASE("check_writable() leaves no file behind") {
  const scratch_folder folder;
  CHECK(check_writable(folder / "x"));
  CHECK(count_files(folder / "") == 0);
  std::ofstream{folder / "x"} << "old";
  CHECK(check_writable(folder / "x"));
  CHECK(text_of(folder / "x") == "old");
  CHECK(check_writable(folder / "none/x").message() ==
        folder / "none/x" + ": cannot write: No such file or directory");
  CHECK(check_writable("/dev/full").message() ==
        "/dev/full: cannot write: expected a file name, got a device or pipe");
}

}  // namespace rrfp::io
