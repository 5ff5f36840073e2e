#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>

#include <rrfp/study/presets.hpp>
#include <rrfp/study/spreads.hpp>

namespace rrfp::study {

using namespace workload;

namespace {

/// The mean of the busiest expert's tokens, in multiples of an even share.
double busiest(const expert_options& options, std::uint32_t experts) {
  constexpr std::uint32_t draws = 4000;
  double sum = 0;
  for (std::uint32_t layer = 0; layer < draws; ++layer) {
    const auto shares = shares_of_experts(options, 1, step_id{0}, 0, layer, experts);
    sum += experts * *std::max_element(shares.begin(), shares.end());
  }
  return sum / draws;
}

}  // namespace

TEST_CASE("the shares of the experts are positive, and their sum is 1") {
  for (const auto concentration : {0.01, 0.5, 1.0, 10.0, 1e6})
    for (const auto experts : {1U, 8U, 128U}) {
      const auto shares = shares_of_experts({expert_spread::dirichlet, concentration}, 1,
                                            step_id{3}, 4, 5, experts);
      REQUIRE(shares.size() == experts);
      CHECK(*std::min_element(shares.begin(), shares.end()) >= 0);
      CHECK(std::accumulate(shares.begin(), shares.end(), 0.0) == Approx(1));
    }
  CHECK(shares_of_experts({expert_spread::even, 1}, 1, step_id{0}, 0, 0, 4) ==
        std::vector<double>(4, 0.25));
}

TEST_CASE("a share has the mean and the variance of the Dirichlet distribution") {
  for (const auto concentration : {0.5, 10.0}) {
    constexpr std::uint32_t experts = 8, draws = 20'000;
    double sum = 0, squares = 0;
    for (std::uint32_t layer = 0; layer < draws; ++layer) {
      const auto share = shares_of_experts({expert_spread::dirichlet, concentration}, 2, step_id{0},
                                           0, layer, experts)[3];
      sum += share;
      squares += share * share;
    }
    const auto mean = sum / draws;
    const auto all = concentration * experts;
    CHECK(mean == Approx(1.0 / experts).epsilon(0.03));
    CHECK(squares / draws - mean * mean ==
          Approx((experts - 1.0) / (experts * experts * (all + 1))).epsilon(0.05));
  }
}

TEST_CASE("the default load of the busiest expert is what its header says") {
  CHECK(busiest({}, 8) == Approx(1.5).epsilon(0.03));
  CHECK(busiest({}, 128) == Approx(2.0).epsilon(0.03));
  CHECK(busiest({expert_spread::dirichlet, 1e6}, 128) == Approx(1).epsilon(0.01));
}

TEST_CASE("shares depend on seed, step, microbatch and layer alone") {
  const auto at = [](std::uint64_t seed, std::uint64_t step, std::uint64_t mb,
                     std::uint32_t layer) {
    return shares_of_experts({}, seed, step_id{step}, mb, layer, 8);
  };
  const auto base = at(1, 2, 3, 4);
  CHECK(base == at(1, 2, 3, 4));
  CHECK(base != at(2, 2, 3, 4));
  CHECK(base != at(1, 3, 3, 4));
  CHECK(base != at(1, 2, 4, 4));
  CHECK(base != at(1, 2, 3, 5));
}

TEST_CASE("a load has the shares of every layer of a mixture, and none of another model") {
  const auto of = [](const char* name, expert_options experts) {
    return load_source{*preset(name), 1, {}, {}, experts, 7}.of(step_id{1}, 2);
  };
  const auto drawn = of("mixtral-8x7b", {}).expert_shares;
  REQUIRE(drawn.size() == 32 * 8);
  const auto of_layer = shares_of_experts({}, 7, step_id{1}, 2, 31, 8);
  CHECK(std::equal(of_layer.begin(), of_layer.end(), drawn.end() - 8));
  CHECK(of("mixtral-8x7b", {expert_spread::even, 1}).expert_shares.empty());
  CHECK(of("gpt3-large", {}).expert_shares.empty());
}

}  // namespace rrfp::study
