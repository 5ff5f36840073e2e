#include <catch2/catch.hpp>

#include <rrfp/simulate/conditions.hpp>

namespace rrfp::simulate {

TEST_CASE("the named levels are the paper's") {
  const auto check = [](const char* level, double probability, double floor_ms, double alpha) {
    const auto options = conditions_of(level);
    REQUIRE(options);
    CHECK(options->seed == conditions{}.seed);
    CHECK(options->compute == compute_jitter::paper);
    CHECK(options->link == link_jitter::none);
    CHECK(options->probability == probability);
    CHECK(options->floor_ms == floor_ms);
    CHECK(options->alpha == alpha);
  };
  check("J1", 0.1, 5, 0.5);
  check("J2", 0.2, 10, 1.0);
  check("J3", 0.3, 15, 1.5);
  REQUIRE(conditions_of("J0"));
  CHECK(conditions_of("J0")->compute == compute_jitter::none);
  CHECK_FALSE(conditions_of("J4"));
}

}  // namespace rrfp::simulate
