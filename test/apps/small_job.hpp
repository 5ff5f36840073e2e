/// A job of two small stages, and its command line for one node or several.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "program.hpp"

namespace rrfp::test {

class small_job {
 public:
  explicit small_job(const std::string& data =
                         "text = [\"/usr/share/common-licenses/GPL-3\"]\nmicrobatch_size = 2\n",
                     const std::string& more = "") {
    std::ofstream{path()} << "[pipeline]\nstages = 2\nmicrobatches = 4\n[model]\nlayers = 2\n"
                             "hidden = 32\nheads = 4\ncontext = 192\n[train]\nsteps = 3\n"
                             "[data]\nsequence_length = 32\n"
                          << data << more;
  }

  std::string path() const { return folder_ / "job.toml"; }
  std::string at(const std::string& name) const { return folder_ / name; }
  std::vector<std::string> run(int nodes, const std::vector<std::string>& settings = {},
                               const std::vector<std::string>& options = {}) const {
    std::vector<std::string> arguments{RRFP_NODE, "run", path()};
    if (nodes > 1) arguments.insert(arguments.end(), {"--local-nodes", std::to_string(nodes)});
    for (const auto& s : settings) arguments.insert(arguments.end(), {"--set", s});
    arguments.insert(arguments.end(), options.begin(), options.end());
    return arguments;
  }

 private:
  scratch_folder folder_;
};

/// The command that runs a line of bash with `arguments` as "$@".
inline std::vector<std::string> with_bash(const std::string& line,
                                          const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"/bin/bash", "-c", line, "bash"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

inline std::ptrdiff_t count_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace rrfp::test
