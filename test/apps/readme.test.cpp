// The pages match the programs: their commands run, their files exist.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cctype>
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

/// All Markdown pages at the root of the repository and below its source folders.
std::vector<std::string> pages() {
  namespace fs = std::filesystem;
  std::vector<std::string> all;
  const auto add = [&](const fs::directory_entry& entry) {
    if (entry.is_regular_file() && entry.path().extension() == ".md") all.push_back(entry.path());
  };
  for (const auto& entry : fs::directory_iterator{RRFP_SOURCE}) add(entry);
  for (const std::string folder : {"apps", "bench", "deploy", "docs", "libactors", "libpipeline",
                                   "libtp_coord", "policies", "test"})
    for (const auto& entry : fs::recursive_directory_iterator{RRFP_SOURCE "/" + folder}) add(entry);
  std::sort(all.begin(), all.end());
  return all;
}

/// The page without the text between ``` and ```.
std::string without_blocks(const std::string& page) {
  std::string prose;
  std::istringstream in{page};
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    const bool is_fence = line.rfind("```", 0) == 0;
    if (is_fence) inside = !inside;
    if (!inside && !is_fence) prose += line + "\n";
  }
  return prose;
}

/// All matches of the pattern's first group.
std::vector<std::string> all_of(const std::string& text, const std::string& pattern) {
  const std::regex wanted{pattern};
  std::vector<std::string> found;
  for (std::sregex_iterator at{text.begin(), text.end(), wanted}, end; at != end; ++at)
    found.push_back((*at)[1].str());
  return found;
}

/// The anchors of a page's headings, as GitHub names them: "Add a policy" is add-a-policy.
std::vector<std::string> anchors_of(const std::string& page) {
  std::vector<std::string> anchors;
  for (const auto& heading : all_of("\n" + without_blocks(page), R"(\n#+ ([^\n]+))")) {
    std::string anchor;
    for (const unsigned char c : heading)
      if (std::isalnum(c) != 0 || c == '-' || c == '_')
        anchor += static_cast<char>(std::tolower(c));
      else if (c == ' ')
        anchor += '-';
    anchors.push_back(anchor);
  }
  return anchors;
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

TEST_CASE("every command of the pages runs") {
  int ran = 0;
  // As after `pip install rrfp`.
  const std::string on_path =
      "cd '" RRFP_SOURCE "' && PATH=$(dirname '" RRFP_SIM "'):$(dirname '" RRFP_NODE "'):$PATH && ";
  for (const auto& page : pages()) {
    const scratch_folder folder;
    for (auto command : commands_of(text_of(page))) {
      // These install and build; scripts/test would run this test.
      if (command == "pip install rrfp") continue;
      if (command == "scripts/train" || command == "scripts/test" ||
          command.starts_with("scripts/build ")) {
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
      // Later commands read traces and checkpoints.
      const bool traces = command.find("--trace") != std::string::npos;
      const bool saves = command.find("checkpoint.dir") != std::string::npos;
      if (trains) command += traces ? " --set train.steps=2" : " --set train.steps=1";
      if (trains && !traces && !saves) command += " --set pipeline.microbatches=4";
      INFO(page << ": " << command);
      const auto o = run_program({"/bin/sh", "-c", on_path + command});
      INFO(o.out << o.err);
      CHECK(o.code == 0);
      ++ran;
    }
  }
  CHECK(ran >= 12);
}

TEST_CASE("every job that the pages show trains, and every experiment runs") {
  int trained = 0;
  int simulated = 0;
  for (const auto& page : pages())
    for (const auto& job : blocks_of(text_of(page), "toml")) {
      const scratch_folder folder;
      const auto file = folder / "job.toml";
      std::ofstream{file} << job;
      const bool is_experiment = job.find("[[workload]]") != std::string::npos;
      const auto o = is_experiment
                         ? run_program({RRFP_JITTER, file, "--cell", "0"})
                         : run_program({RRFP_NODE, "run", file, "--set", "train.steps=1"});
      INFO(page << ": " << o.out << o.err);
      CHECK(o.code == 0);
      ++(is_experiment ? simulated : trained);
    }
  CHECK(trained >= 1);
  CHECK(simulated >= 1);
}

TEST_CASE("every file and every heading that the pages link to exists") {
  int links = 0;
  for (const auto& file : pages()) {
    const auto folder = std::filesystem::path{file}.parent_path();
    for (const auto& link : all_of(without_blocks(text_of(file)), R"(\]\(([^):]+)\))")) {
      INFO(file << ": " << link);
      const auto hash = link.find('#');
      const auto name = link.substr(0, hash);
      const auto target = name.empty() ? std::filesystem::path{file} : folder / name;
      CHECK(std::filesystem::exists(target));
      if (hash != link.npos) CHECK(contains(anchors_of(text_of(target)), link.substr(hash + 1)));
      ++links;
    }
  }
  CHECK(links >= 60);
}

TEST_CASE("every path of the repository that the pages name exists") {
  int paths = 0;
  const std::regex path{
      R"((\.ci|apps|bench|cmake|deploy|docs|libactors|libpipeline|libtp_coord|policies|scripts|test)/[a-z0-9_./@-]+)"};
  for (const auto& file : pages())
    for (const auto& code : all_of(without_blocks(text_of(file)), R"(`([^`\n]+)`)")) {
      std::istringstream words{code};
      for (std::string word; words >> word;) {
        if (!std::regex_match(word, path)) continue;
        INFO(file << ": " << word);
        CHECK(std::filesystem::exists(RRFP_SOURCE "/" + word));
        ++paths;
      }
    }
  CHECK(paths >= 40);
}

TEST_CASE("every target that the pages build exists") {
  std::string lists;
  for (const std::string folder :
       {"apps", "bench", "libactors", "libpipeline", "libtp_coord", "policies", "test"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator{RRFP_SOURCE "/" + folder})
      if (entry.path().filename() == "CMakeLists.txt") lists += text_of(entry.path());
  const auto presets = text_of(RRFP_SOURCE "/CMakePresets.json");
  int targets = 0;
  for (const auto& file : pages())
    for (const auto& command : all_of(text_of(file), R"(scripts/build ([a-z][a-z0-9_ -]*))")) {
      std::istringstream words{command};
      std::string preset;
      words >> preset;
      INFO(file << ": " << command);
      CHECK(presets.find("\"name\": \"" + preset + "\"") != presets.npos);
      for (std::string target; words >> target; ++targets)
        CHECK_FALSE(all_of(lists, "[( ](" + target + ")[\\s)]").empty());
    }
  CHECK(targets >= 10);
}

TEST_CASE("the index of the documentation lists every page of its folder") {
  const auto index = all_of(text_of(RRFP_SOURCE "/docs/README.md"), R"(\]\(([^):]+)\))");
  for (const auto& entry : std::filesystem::directory_iterator{RRFP_SOURCE "/docs"}) {
    const auto name = entry.path().filename().string();
    if (entry.path().extension() != ".md" || name == "README.md") continue;
    INFO(name);
    CHECK(contains(index, name));
  }
}

TEST_CASE("the pages use the field's own words") {
  struct replacement {
    std::string word;
    std::string instead;
  };
  const std::vector<replacement> replaced{
      {"crew", "members, ranks"},
      {"gifts", "contributions"},
      {"heed", "follow, obey"},
      {"weigh", "hash, count"},
      {"sky", "weather"},
      {"hindrance", "delay"},
      {"the boss", "decides"},
      {"stand still", "wait, stall"},
      {"stood still", "waited, stalled"},
      {"takes eyes", "needs the images"},
      {"no number any more", "NaN"},
      {"no word from", "sent no heartbeat"},
      {"one's own", "your, its"},
      {"goes on from", "resumes from"},
  };
  for (const auto& file : pages()) {
    // The job reference is generated from the program's texts.
    if (file.ends_with("/docs/job-reference.md")) continue;
    // Code uses the program's words.
    const auto prose =
        std::regex_replace(without_blocks(text_of(file)), std::regex{"`[^`\n]+`"}, "");
    const auto one_line = std::regex_replace(prose, std::regex{R"(\s+)"}, " ");
    for (const auto& r : replaced) {
      INFO(file << ": write '" << r.instead << "' for '" << r.word << "'");
      CHECK_FALSE(std::regex_search(one_line, std::regex{"\\b" + r.word + "\\b"}));
    }
  }
}

TEST_CASE("the README fits a few screens") {
  const auto text = text_of(RRFP_SOURCE "/README.md");
  CHECK(std::count(text.begin(), text.end(), '\n') <= 160);
}

TEST_CASE("the code on the pages is part of the examples") {
  const auto without_spaces = [](const std::string& text) {
    return std::regex_replace(text, std::regex{R"(\s+)"}, "");
  };
  const auto program =
      without_spaces(text_of(RRFP_SOURCE "/examples/embed_trainer/embed_trainer.cpp") +
                     text_of(RRFP_SOURCE "/examples/embed_trainer/CMakeLists.txt") +
                     text_of(RRFP_SOURCE "/examples/own_policy/own_policy.cpp"));
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

TEST_CASE("the jobs of the results are valid") {
  int checked = 0;
  for (const auto& file : std::filesystem::directory_iterator{RRFP_SOURCE "/bench/jobs"}) {
    // The node that its head comment names.
    const auto* const node = text_of(file.path()).find("#   rrfp-node run ") != std::string::npos
                                 ? RRFP_NODE
                                 : RRFP_JITTER_NODE;
    const auto o = run_program({node, "check", file.path()});
    INFO(file.path() << ": " << o.err);
    CHECK(o.code == 0);
    ++checked;
  }
  CHECK(checked >= 3);
}

TEST_CASE("the page of results agrees with the stored figures") {
  const auto o = run_program({RRFP_SOURCE "/scripts/results", "--check"});
  INFO(o.err);
  CHECK(o.code == 0);
  const auto chart = text_of(RRFP_SOURCE "/docs/results/policies.svg");
  CHECK_THAT(chart, Catch::Matchers::Contains("simulated"));
  CHECK_THAT(chart, !Catch::Matchers::Contains("measured"));
  // Nothing that a run writes is among the sources.
  CHECK_FALSE(std::filesystem::exists(RRFP_SOURCE "/checkpoints"));
}

TEST_CASE("the job reference matches the program") {
  const auto o = run_program({RRFP_NODE, "keys", "--markdown"});
  CHECK(o.code == 0);
  CHECK(o.out == text_of(RRFP_SOURCE "/docs/job-reference.md"));
}
