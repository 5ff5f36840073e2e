/// A program under the fork server, which runs it once per input.
#pragma once

#include <string>
#include <vector>

#include "forked_program.hpp"

namespace rrfp::fuzz {

struct outcome {
  test::answer ended;
  std::string err;
};

class fuzz_target {
 public:
  /// Throws std::runtime_error if the program cannot be started.
  fuzz_target(const std::string& program, const std::string& fork_server);

  /// Runs the program once in `folder`; `err` is the file for its stderr. `whole_end`: with the
  /// destructors of static objects.
  outcome run(const std::string& folder, const std::vector<std::string>& arguments,
              const std::string& err, bool whole_end);

 private:
  const std::string program_;
  const test::fork_server server_;
};

}  // namespace rrfp::fuzz
