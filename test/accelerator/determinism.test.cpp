#include <map>

#include <catch2/catch.hpp>

#include <rrfp/accelerator/determinism.hpp>

namespace rrfp::accelerator {

namespace {

environment of(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    // The map is captured and lives as long as the function.
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

}  // namespace

TEST_CASE("an empty environment gets all variables that make equal work give equal bits") {
  CHECK(missing_variables(of({})).value() ==
        std::vector<variable>{{"CUBLAS_WORKSPACE_CONFIG", ":4096:8"},
                              {"NCCL_ALGO", "Ring"},
                              {"NCCL_PROTO", "Simple"}});
  CHECK(missing_variables(of({{"NCCL_ALGO", ""}})).value().size() == 3);
}

TEST_CASE("a fixed choice in the environment is kept") {
  const auto left = missing_variables(
      of({{"CUBLAS_WORKSPACE_CONFIG", ":16:8"}, {"NCCL_ALGO", "Tree"}, {"NCCL_PROTO", "LL"}}));
  CHECK(left.value().empty());
}

TEST_CASE("a cuBLAS workspace that cannot be deterministic is refused by name") {
  CHECK(missing_variables(of({{"CUBLAS_WORKSPACE_CONFIG", ":0:0"}})).message() ==
        "the variable CUBLAS_WORKSPACE_CONFIG: device.deterministic expects :4096:8 or :16:8, got "
        ":0:0");
}

}  // namespace rrfp::accelerator
