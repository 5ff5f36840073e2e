/// A program under the fork server, which runs it once per input.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "fork_server.hpp"

namespace rrfp::fuzz {

struct outcome {
  answer ended;
  std::string err;
};

class fuzz_target {
 public:
  /// Throws std::runtime_error if the program cannot be started.
  fuzz_target(const std::string& program, const std::string& fork_server);
  fuzz_target(const fuzz_target&) = delete;
  fuzz_target& operator=(const fuzz_target&) = delete;
  ~fuzz_target();

  /// Runs the program once in `folder`; `err` is the file for its stderr. `whole_end`: with the
  /// destructors of static objects.
  outcome run(const std::string& folder, const std::vector<std::string>& arguments,
              const std::string& err, bool whole_end);

 private:
  const std::string program_;
  pid_t pid_ = -1;
  int channel_ = -1;
};

}  // namespace rrfp::fuzz
