/// A program of the product, held before its main() by fork_server and run as often as asked.
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

class held_program {
 public:
  /// Throws std::runtime_error if it does not start.
  held_program(const std::string& program, const std::string& fork_server);
  held_program(const held_program&) = delete;
  held_program& operator=(const held_program&) = delete;
  ~held_program();

  /// One run in `folder`; `err` is the file that takes what it says. `whole_end`: with all that a
  /// process does at its end.
  outcome run(const std::string& folder, const std::vector<std::string>& arguments,
              const std::string& err, bool whole_end);

 private:
  const std::string program_;
  pid_t pid_ = -1;
  int channel_ = -1;
};

}  // namespace rrfp::fuzz
