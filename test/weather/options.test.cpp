#include <limits>
#include <string>

#include <catch2/catch.hpp>

#include <rrfp/simulate/weather.hpp>

namespace rrfp::weather {

TEST_CASE("the named levels are the paper's") {
  const auto check = [](const char* level, double probability, double floor_ms, double alpha) {
    const auto options = jitter_level(level, 42);
    REQUIRE(options);
    CHECK(options->seed == 42);
    CHECK(options->compute == compute_jitter::paper);
    CHECK(options->link == link_jitter::none);
    CHECK(options->probability == probability);
    CHECK(options->floor_ms == floor_ms);
    CHECK(options->alpha == alpha);
  };
  check("J1", 0.1, 5, 0.5);
  check("J2", 0.2, 10, 1.0);
  check("J3", 0.3, 15, 1.5);
  REQUIRE(jitter_level("J0", 42));
  CHECK(jitter_level("J0", 42)->compute == compute_jitter::none);
  CHECK_FALSE(jitter_level("J4", 42));
}

TEST_CASE("an invalid option is named with its valid range") {
  CHECK(validate({}).ok());
  const auto message = [](auto change) {
    jitter_options options;
    change(options);
    const auto checked = validate(options);
    REQUIRE_FALSE(checked.ok());
    return checked.message();
  };
  CHECK(message([](auto& o) { o.link_alpha = 1; }) ==
        "link_alpha: expected a finite number > 1 (otherwise the mean is infinite), got 1.000000");
  CHECK(message([](auto& o) { o.probability = 1.5; }) ==
        "probability: expected a number from 0 to 1, got 1.500000");
  CHECK(message([](auto& o) { o.compute_sigma = -1; }) ==
        "compute_sigma: expected a finite number >= 0, got -1.000000");
  constexpr auto infinite = std::numeric_limits<double>::infinity();
  CHECK(message([](auto& o) { o.floor_ms = infinite; }).starts_with("floor_ms"));
  CHECK(message([](auto& o) { o.alpha = -infinite; }).starts_with("alpha"));
  CHECK(message([](auto& o) { o.link_mean_ms = -0.1; }).starts_with("link_mean_ms"));
  CHECK(message([](auto& o) { o.link_sigma = infinite; }).starts_with("link_sigma"));
}

}  // namespace rrfp::weather
