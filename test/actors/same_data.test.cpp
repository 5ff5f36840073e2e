/// Nodes that read different data are found by the fingerprints of what they read.
#include <catch2/catch.hpp>

#include <rrfp/actors/job_session.hpp>

namespace rrfp::actors {
namespace {

TEST_CASE("the first node that read different data is named, with both fingerprints") {
  const std::string a = "0123456789abcdef", b = "fedcba9876543210";
  CHECK(check_same_data(std::vector{a, a, a}).ok());
  CHECK(check_same_data(std::vector{a, a, b}).message() ==
        "node 2 read different data than node 0: expected fingerprint " + a + ", got " + b);
  CHECK(check_same_data(std::vector{std::string{}}).ok());
  CHECK(check_same_data(std::vector{std::string{}, a, std::string{}, a}).ok());
  CHECK(check_same_data(std::vector{std::string{}, a, b}).message() ==
        "node 2 read different data than node 1: expected fingerprint " + a + ", got " + b);
}

}  // namespace
}  // namespace rrfp::actors
