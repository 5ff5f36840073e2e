// What the pages show is what the product does: their commands run, their files exist.
#include <catch2/catch.hpp>

#include <algorithm>
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

std::vector<std::string> pages() {
  std::vector<std::string> all{RRFP_SOURCE "/README.md"};
  for (const auto& entry : std::filesystem::directory_iterator{RRFP_SOURCE "/docs"})
    if (entry.path().extension() == ".md") all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST_CASE("every command of the pages runs") {
  int ran = 0;
  for (const auto& page : pages()) {
    const scratch_folder folder;
    for (auto command : commands_of(text_of(page))) {
      // The two scripts install and build; they run this test.
      if (command == "scripts/train" || command == "scripts/test") {
        CHECK(std::filesystem::exists(RRFP_SOURCE "/" + command.substr(0, command.find(' '))));
        continue;
      }
      const bool trains = command.find("rrfp-node run") != std::string::npos;
      command = std::regex_replace(command, std::regex{"/tmp/"}, folder / "");
      command = std::regex_replace(command, std::regex{"build/release/bin/rrfp-node"}, RRFP_NODE);
      command = std::regex_replace(command, std::regex{"build/release/bin/rrfp-sim"}, RRFP_SIM);
      command =
          std::regex_replace(command, std::regex{"build/release/bin/rrfp-report"}, RRFP_REPORT);
      command =
          std::regex_replace(command, std::regex{"build/release/bin/rrfp-jitter"}, RRFP_JITTER);
      command =
          std::regex_replace(command, std::regex{"build/release/bin/rrfp-shapes"}, RRFP_SHAPES);
      if (trains) command += " --set train.steps=2";
      INFO(page << ": " << command);
      const auto o = run_program({"/bin/sh", "-c", "cd '" RRFP_SOURCE "' && " + command});
      INFO(o.out << o.err);
      CHECK(o.code == 0);
      ++ran;
    }
  }
  CHECK(ran >= 12);
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

TEST_CASE("every file that the pages link to is there") {
  int links = 0;
  for (const auto& file : pages()) {
    const auto page = text_of(file);
    const std::regex link{R"(\]\(([^)#:]+)(#[^)]*)?\))"};
    for (std::sregex_iterator at{page.begin(), page.end(), link}, end; at != end; ++at, ++links) {
      INFO(file << ": " << (*at)[1].str());
      CHECK(std::filesystem::exists(std::filesystem::path{file}.parent_path() / (*at)[1].str()));
    }
  }
  CHECK(links >= 20);
}

TEST_CASE("the code of the pages is that of the program that embeds the runtime") {
  const auto without_spaces = [](const std::string& text) {
    return std::regex_replace(text, std::regex{R"(\s+)"}, "");
  };
  const auto program = without_spaces(text_of(RRFP_SOURCE "/apps/embed_trainer/embed_trainer.cpp") +
                                      text_of(RRFP_SOURCE "/apps/embed_trainer/CMakeLists.txt"));
  int blocks = 0;
  for (const auto& file : pages())
    for (const std::string language : {"cpp", "cmake"})
      for (const auto& block : blocks_of(text_of(file), language)) {
        INFO(file << ": " << block);
        CHECK(program.find(without_spaces(block)) != std::string::npos);
        ++blocks;
      }
  CHECK(blocks >= 3);
}

TEST_CASE("the job reference is that of the program") {
  const auto o = run_program({RRFP_NODE, "keys", "--markdown"});
  CHECK(o.code == 0);
  CHECK(o.out == text_of(RRFP_SOURCE "/docs/job-reference.md"));
}
