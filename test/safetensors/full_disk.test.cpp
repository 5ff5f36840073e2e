/// A full disk: a real one where the test may mount a file system of a few pages, and everywhere
/// the limit on a file's size.
#include "support.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <rrfp/safetensors/sharded_writer.hpp>

#include "tiny_disk.hpp"

namespace rrfp::safetensors::test {
namespace {

/// The message of `work`, run in a child process that may write no file larger than `bytes`.
template <class Work>
std::string said_with_limit(rlim_t bytes, Work work) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);  // then the write fails, and the process continues
    const rlimit limit{bytes, bytes};
    std::string text = ::setrlimit(RLIMIT_FSIZE, &limit) == 0 ? work() : "no limit";
    const auto sent = ::write(ends[1], text.data(), text.size());
    ::_exit(sent == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int state = 0;
  ::waitpid(child, &state, 0);
  REQUIRE(state == 0);
  return text;
}

TEST_CASE("A failed write is an error and leaves the old file unchanged") {
  const scratch_folder folder;
  const auto path = folder / "x.safetensors";
  write_text(path, "old");
  // In the data; in the header.
  for (const rlim_t limit : {3000U, 100U, 4U}) {
    const auto said = said_with_limit(limit, [&] {
      return write_all(path, {{"a", dtype::float32, {1000}}, {"b", dtype::uint8, {9}}});
    });
    CHECK(said == path + ": cannot write: File too large");
    CHECK(text_of(path) == "old");
    CHECK(files_beside(path) == 0);
  }
}

TEST_CASE("A full disk is an error and leaves the old file unchanged") {
  const scratch_folder folder;
  const rrfp::test::tiny_disk disk{folder / "disk", "size=64k"};
  if (!disk.is_mounted()) return;
  const auto path = folder / "disk/x.safetensors";
  REQUIRE(write_all(path, {{"old", dtype::uint8, {1000}}}) == "");
  CHECK(write_all(path, {{"a", dtype::float32, {100, 1000}}}) ==
        path + ": cannot write: No space left on device");
  CHECK(files_beside(path) == 0);
  CHECK((*file::open(path))->find("old") != nullptr);
  // The abandoned file takes no space.
  CHECK(write_all(path, {{"new", dtype::uint8, {30000}}}) == "");
}

TEST_CASE("A model leaves no file if one of its files cannot be written") {
  const scratch_folder folder;
  const auto to = folder / "out";
  const auto said = said_with_limit(2000, [&]() -> std::string {
    auto w = sharded_writer::create(to, {{"a", dtype::uint8, {100}}, {"b", dtype::uint8, {5000}}},
                                    {}, 1);
    if (!w) return w.message();
    for (const auto& name : (*w)->order())
      if (auto done = (*w)->write(name, std::vector<std::byte>(name == "a" ? 100 : 5000)); !done)
        return done.message();
    return "written";
  });
  CHECK(said == to + "/model-00002-of-00002.safetensors: cannot write: File too large");
  CHECK(std::filesystem::is_empty(to));
}

}  // namespace
}  // namespace rrfp::safetensors::test
