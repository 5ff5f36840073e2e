/// Reads the JSON lines of `--json FILE`.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace rrfp::test {

inline std::vector<nlohmann::json> lines_of(const std::string& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream in{file};
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace rrfp::test
