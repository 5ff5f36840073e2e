#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/core/placement.hpp>

namespace rrfp {
namespace {

using order = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("Loaded admission keeps the order of the data") {
  CHECK(admission_order(admission::loaded, std::vector{3.0, 1.0, 2.0}) == order{0, 1, 2});
}

TEST_CASE("Small-large-small rises to the most expensive and falls again") {
  CHECK(admission_order(admission::small_large_small, std::vector{5.0, 1.0, 4.0, 2.0, 3.0}) ==
        order{1, 4, 0, 2, 3});
  for (std::size_t m = 1; m <= 17; ++m) {
    std::vector<double> cost(m);
    for (std::size_t i = 0; i < m; ++i) cost[i] = static_cast<double>(i * 7 % m);
    const auto got = admission_order(admission::small_large_small, cost);
    const auto top =
        std::max_element(got.begin(), got.end(), [&](auto a, auto b) { return cost[a] < cost[b]; });
    const auto cheaper = [&](auto a, auto b) { return cost[a] < cost[b]; };
    REQUIRE(std::is_sorted(got.begin(), top, cheaper));
    REQUIRE(std::is_sorted(top, got.end(), [&](auto a, auto b) { return cheaper(b, a); }));
  }
}

TEST_CASE("Every admission order names each microbatch once") {
  for (std::size_t m = 0; m <= 9; ++m) {
    const order loaded = admission_order(admission::loaded, std::vector<double>(m));
    CHECK(admission_order(admission::small_large_small, std::vector<double>(m, 1.0)) == loaded);
    std::vector<double> cost(m);
    for (std::size_t i = 0; i < m; ++i) cost[i] = static_cast<double>(i % 3);
    auto got = admission_order(admission::small_large_small, cost);
    std::sort(got.begin(), got.end());
    REQUIRE(got == loaded);
  }
}

}  // namespace rrfp
