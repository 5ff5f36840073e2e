#include "fuzz_target.hpp"

#include "program.hpp"

namespace rrfp::fuzz {

fuzz_target::fuzz_target(const std::string& program, const std::string& fork_server)
    : program_(program), server_(program, fork_server) {}

outcome fuzz_target::run(const std::string& folder, const std::vector<std::string>& arguments,
                         const std::string& err, bool whole_end) {
  std::vector<std::string> words{folder, "/dev/null", err,
                                 std::string{whole_end ? test::whole_fuzz_word : test::fuzz_word},
                                 program_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const auto ended = server_.ask<test::answer>(words);
  return {ended, test::text_of(err)};
}

}  // namespace rrfp::fuzz
