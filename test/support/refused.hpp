/// Refusals of bad input.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "program.hpp"

namespace rrfp::test {

/// Checks that the program ended with exit code 2, no output and one line, which has the texts.
inline void require_refused(const outcome& o, const std::vector<std::string>& expected) {
  INFO(o.err);
  CHECK(o.code == 2);
  CHECK(o.out.empty());
  CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
  for (const auto& text : expected) CHECK_THAT(o.err, Catch::Matchers::Contains(text));
}

}  // namespace rrfp::test
