// What the README shows is what the product does: its commands run, its files exist.
#include <catch2/catch.hpp>

#include <regex>
#include <sstream>

#include "program.hpp"

namespace {

using namespace rrfp::test;

/// The text of the blocks between ```LANGUAGE and ```.
std::vector<std::string> blocks_of(const std::string& page, const std::string& language) {
  std::vector<std::string> blocks;
  std::istringstream in{page};
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = line == "```" + language;
      if (inside) blocks.emplace_back();
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

/// Commands in console blocks, without the prompt.
std::vector<std::string> commands_of(const std::string& page) {
  std::vector<std::string> commands;
  for (const auto& block : blocks_of(page, "console")) {
    std::istringstream in{block};
    for (std::string line; std::getline(in, line);)
      if (line.rfind("$ ", 0) == 0) commands.push_back(line.substr(2));
  }
  return commands;
}

}  // namespace

TEST_CASE("every command of the README runs") {
  const auto commands = commands_of(text_of(RRFP_SOURCE "/README.md"));
  REQUIRE(commands.size() >= 6);
  const scratch_folder folder;
  int ran = 0;
  for (auto command : commands) {
    // The two scripts install and build; they run this test.
    if (command == "scripts/train" || command == "scripts/test") {
      CHECK(std::filesystem::exists(RRFP_SOURCE "/" + command.substr(0, command.find(' '))));
      continue;
    }
    const bool trains = command.find("rrfp-node run") != std::string::npos;
    command = std::regex_replace(command, std::regex{"/tmp/"}, folder / "");
    command = std::regex_replace(command, std::regex{"build/release/bin/rrfp-node"}, RRFP_NODE);
    command = std::regex_replace(command, std::regex{"build/release/bin/rrfp-sim"}, RRFP_SIM);
    command = std::regex_replace(command, std::regex{"build/release/bin/rrfp-report"}, RRFP_REPORT);
    command = std::regex_replace(command, std::regex{"build/release/bin/rrfp-jitter"}, RRFP_JITTER);
    command = std::regex_replace(command, std::regex{"build/release/bin/rrfp-shapes"}, RRFP_SHAPES);
    if (trains) command += " --set train.steps=2";
    INFO(command);
    const auto o = run_program({"/bin/sh", "-c", "cd '" RRFP_SOURCE "' && " + command});
    INFO(o.out << o.err);
    CHECK(o.code == 0);
    ++ran;
  }
  CHECK(ran >= 4);
}

TEST_CASE("every job that the README shows trains") {
  const auto jobs = blocks_of(text_of(RRFP_SOURCE "/README.md"), "toml");
  REQUIRE(jobs.size() == 1);
  const scratch_folder folder;
  const auto file = folder / "job.toml";
  std::ofstream{file} << jobs[0];
  const auto o = run_program({RRFP_NODE, "run", file, "--set", "train.steps=2"});
  INFO(o.out << o.err);
  CHECK(o.code == 0);
}

TEST_CASE("every file that the README links to is there") {
  const auto page = text_of(RRFP_SOURCE "/README.md");
  const std::regex link{R"(\]\(([^)#:]+)\))"};
  int links = 0;
  for (std::sregex_iterator at{page.begin(), page.end(), link}, end; at != end; ++at, ++links) {
    INFO((*at)[1].str());
    CHECK(std::filesystem::exists(RRFP_SOURCE "/" + (*at)[1].str()));
  }
  CHECK(links >= 6);
}
