/// A file is there whole or not at all, and the way there harms no other.
#include <catch2/catch.hpp>

#include <rrfp/files/whole_file.hpp>

#include "program.hpp"

namespace rrfp::files {
namespace {

using test::scratch_folder;
using test::text_of;

std::size_t files_in(const std::string& folder) {
  const std::filesystem::directory_iterator all{folder};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

status write(whole_file& to, std::string_view text) {
  return to.write(std::as_bytes(std::span{text}));
}

}  // namespace

TEST_CASE("two files for one place do not meet before they are committed") {
  const scratch_folder folder;
  const auto path = folder / "x";
  const auto first = *whole_file::create(path);
  const auto second = *whole_file::create(path);
  REQUIRE(write(*first, "first"));
  REQUIRE(write(*second, "second"));
  REQUIRE(first->commit());
  CHECK(text_of(path) == "first");
  REQUIRE(second->commit());
  CHECK(text_of(path) == "second");
  CHECK(files_in(folder / "") == 1);
}

TEST_CASE("a file of the name that would be taken stays as it is") {
  const scratch_folder folder;
  const auto path = folder / "x";
  std::string next;
  {
    const auto probe = *whole_file::create(path);
    const auto number = probe->beside().rfind('-') + 1;
    next = probe->beside().substr(0, number) +
           std::to_string(std::stoi(probe->beside().substr(number)) + 1) + ".tmp";
  }
  std::ofstream{next} << "another's";
  REQUIRE(write_whole(path, "mine"));
  CHECK(text_of(next) == "another's");
  CHECK(text_of(path) == "mine");
}

TEST_CASE("whether a file can be written is found out without a trace") {
  const scratch_folder folder;
  CHECK(check_writable(folder / "x"));
  CHECK(files_in(folder / "") == 0);
  std::ofstream{folder / "x"} << "old";
  CHECK(check_writable(folder / "x"));
  CHECK(text_of(folder / "x") == "old");
  CHECK(check_writable(folder / "none/x").message() ==
        folder / "none/x" + ": cannot write: No such file or directory");
  CHECK(check_writable("/dev/full").message() ==
        "/dev/full: cannot write: expected a file's name, got a device or pipe");
}

}  // namespace rrfp::files
