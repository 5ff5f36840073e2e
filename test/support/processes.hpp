/// The child processes of a program.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "program.hpp"

namespace rrfp::test {

/// Parent of a process, or 0 when it is gone.
inline pid_t parent_of(pid_t pid) {
  std::ifstream stat{"/proc/" + std::to_string(pid) + "/stat"};
  std::string line;
  std::getline(stat, line);
  const auto after_name = line.rfind(')');
  if (after_name == std::string::npos) return 0;
  std::istringstream rest{line.substr(after_name + 1)};
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return state == 'Z' ? 0 : parent;
}

inline std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc"}) {
    const auto child = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    if (child > 0 && parent_of(child) == pid) children.push_back(child);
  }
  return children;
}

/// The process of node `rank` among the children of a launcher.
inline pid_t node_process(pid_t launcher, std::uint32_t rank) {
  const std::string wanted = std::string("--node-rank") + '\0' + std::to_string(rank) + '\0';
  for (const auto child : children_of(launcher))
    if (text_of("/proc/" + std::to_string(child) + "/cmdline").find(wanted) != std::string::npos)
      return child;
  return 0;
}

}  // namespace rrfp::test
