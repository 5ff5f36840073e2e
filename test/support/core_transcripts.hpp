/// Transcripts of the cores as files: a line for each event, then what the core answers, indented
/// by two spaces. A line that starts with '#' is a comment.
///
/// With RRFP_REWRITE=1 in its environment, a test program rewrites its transcripts; the difference
/// is the review.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace rrfp::testing {

/// The words of one line; what is not expected throws.
class words {
 public:
  explicit words(const std::string& line) : in_(line) {}

  std::string next() {
    std::string word;
    if (!(in_ >> word)) throw std::invalid_argument("expected another word");
    return word;
  }
  bool more() { return !(in_ >> std::ws).eof(); }
  std::string rest() {
    std::string text;
    if (more()) std::getline(in_, text);
    return text;
  }
  std::uint64_t number() { return std::stoull(next()); }
  template <class Enum, std::size_t N>
  Enum one_of(const char* const (&names)[N]) {
    const auto word = next();
    for (std::size_t i = 0; i < N; ++i)
      if (word == names[i]) return static_cast<Enum>(i);
    throw std::invalid_argument("unknown word '" + word + "'");
  }
  /// "0.1.2"
  std::vector<std::uint32_t> parts() {
    std::istringstream in{next()};
    std::vector<std::uint32_t> all;
    for (std::string part; std::getline(in, part, '.');)
      all.push_back(static_cast<std::uint32_t>(std::stoul(part)));
    return all;
  }

 private:
  std::istringstream in_;
};

/// The text with the answers of the core: `answer(words)` returns their lines, or throws what was
/// expected. Lines that start with a space are not read.
template <class Answer>
std::string replay(const std::string& text, Answer answer) {
  std::istringstream lines{text};
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(' ')) continue;
    out += line + "\n";
    if (line.empty() || line[0] == '#') continue;
    words w{line};
    try {
      out += answer(w);
    } catch (const std::exception& problem) {
      out += std::string{"  error: "} + problem.what() + "\n";
    }
  }
  return out;
}

/// Each file of `folder` must be what `replayed` makes of it.
template <class Replayed>
void check_transcripts(const std::filesystem::path& folder, std::size_t files_min,
                       Replayed replayed) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator{folder})
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= files_min);
  for (const auto& file : files) {
    INFO(file);
    std::ostringstream text;
    text << std::ifstream{file}.rdbuf();
    const auto actual = replayed(text.str());
    CHECK(actual.find("  error: ") == std::string::npos);
    if (std::getenv("RRFP_REWRITE") != nullptr)
      std::ofstream{file} << actual;
    else
      CHECK(actual == text.str());
  }
}

}  // namespace rrfp::testing
