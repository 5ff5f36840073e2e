#include <memory>
#include <string>

#include <catch2/catch.hpp>

#include <rrfp/base/result.hpp>

#include "death.hpp"

namespace rrfp {
namespace {

result<std::string> word(bool good) {
  if (good) return std::string{"yes"};
  return error{"expected a word, got nothing"};
}

}  // namespace

TEST_CASE("A result is a value or a message, and either can be passed on") {
  CHECK(word(true).ok());
  CHECK(*word(true) == "yes");
  CHECK(word(true)->size() == 3);
  CHECK_FALSE(word(false));
  CHECK(word(false).message() == "expected a word, got nothing");
  const status handed_on = word(false).failure();
  CHECK(handed_on.message() == "expected a word, got nothing");
  CHECK(success().ok());
}

TEST_CASE("A move-only value can be moved out") {
  result<std::unique_ptr<int>> r = std::make_unique<int>(7);
  const auto owned = *std::move(r);
  CHECK(*owned == 7);
}

TEST_CASE(
    "Asking a failure for its value, or a value for its message, aborts with the source location") {
  CHECK_THAT(testing::abort_message([] { (void)word(false).value(); }),
             Catch::Contains("broken invariant: value() of an error (ok()) at ") &&
                 Catch::Contains("result.hpp:"));
  CHECK_THAT(testing::abort_message([] { (void)word(true).message(); }),
             Catch::Contains("failure() of a value"));
}

}  // namespace rrfp
