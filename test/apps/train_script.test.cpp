// scripts/train without its installation and build, which are already done.
#include <catch2/catch.hpp>

#include <algorithm>

#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

/// A checkout with the script, the jobs and the programs.
class checkout {
 public:
  checkout() {
    fs::create_directories(folder_ / "scripts");
    fs::create_directories(folder_ / "build/release/bin");
    fs::copy(RRFP_SOURCE "/scripts/train", folder_ / "scripts/train");
    for (const std::string script : {"scripts/setup", "scripts/build"}) {
      std::ofstream{folder_ / script} << "#!/bin/sh\n";
      fs::permissions(folder_ / script, fs::perms::owner_all);
    }
    fs::create_symlink(RRFP_NODE, folder_ / "build/release/bin/rrfp-node");
    fs::create_symlink(RRFP_REPORT, folder_ / "build/release/bin/rrfp-report");
    fs::create_symlink(RRFP_SOURCE "/apps", folder_ / "apps");
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }
  outcome train(const std::string& setting) const {
    return run_program({folder_ / "scripts/train", "--set", setting});
  }

 private:
  scratch_folder folder_;
};

}  // namespace

TEST_CASE("scripts/train ends with the table, the picture's path and what to try next") {
  const checkout c;
  const auto o = c.train("train.steps=2");
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  const auto table = o.out.find("losses and weights are equal to the last bit");
  const auto picture = o.out.find("picture: runs/quickstart.svg");
  const auto next = o.out.find("\nnext: ");
  REQUIRE(next != std::string::npos);
  CHECK(table < picture);
  CHECK(picture < next);
  CHECK(std::count(o.out.begin() + static_cast<std::ptrdiff_t>(next), o.out.end(), '\n') == 2);
  for (const std::string file : {"runs/quickstart.svg", "runs/quickstart.html"})
    CHECK(fs::file_size(c / file) > 1000);
}

TEST_CASE("scripts/train ends with the code of a run that fails, and draws nothing") {
  const checkout c;
  const auto o = c.train("train.steps=0");
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("train.steps"));
  CHECK(!fs::exists(c / "runs/quickstart.svg"));
}

TEST_CASE("every script answers --help and -h with its header, and does nothing else") {
  for (const auto& script : fs::directory_iterator{RRFP_SOURCE "/scripts"})
    for (const std::string option : {"--help", "-h"}) {
      const auto o = run_program({script.path(), option});
      INFO(script.path() << " " << option << ": " << o.out << o.err);
      CHECK(o.code == 0);
      CHECK(o.err.empty());
      // The first sentence of the head, without what marks a comment.
      auto head = text_of(script.path());
      head = head.substr(head.find('\n') + 1);
      head = head.substr(head.find_first_not_of("#\" "));
      CHECK_THAT(o.out, Contains(head.substr(0, 30)));
    }
}
