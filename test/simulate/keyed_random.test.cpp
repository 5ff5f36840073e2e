#include <bit>
#include <set>

#include <catch2/catch.hpp>

#include <rrfp/simulate/keyed_random.hpp>

#include "sample.hpp"

namespace rrfp::simulate {

using testing::draws, testing::sample;

TEST_CASE("uniform draws fill [0, 1) evenly, whichever word of the key varies") {
  for (int word = 0; word < 3; ++word) {
    sample s;
    std::uint64_t tenths[10] = {};
    for (std::uint64_t i = 0; i < draws; ++i) {
      const auto at = [&](int w) { return w == word ? i : 7U; };
      const auto u = keyed_random{at(0), at(1), at(2)}.uniform();
      REQUIRE(u >= 0);
      REQUIRE(u < 1);
      s.add(u);
      ++tenths[static_cast<int>(u * 10)];
    }
    CHECK(s.mean() == Approx(0.5).margin(0.005));
    CHECK(s.deviation() == Approx(std::sqrt(1.0 / 12)).margin(0.005));
    for (const auto count : tenths) CHECK(count == Approx(draws / 10).epsilon(0.03));
  }
}

TEST_CASE("normal draws have mean 0, deviation 1 and normal tails") {
  sample s;
  std::uint64_t beyond_two = 0;
  for (std::uint64_t i = 0; i < draws; ++i) {
    const auto z = keyed_random{i}.normal();
    s.add(z);
    beyond_two += std::abs(z) > 2 ? 1 : 0;
  }
  CHECK(s.mean() == Approx(0).margin(0.01));
  CHECK(s.deviation() == Approx(1).margin(0.01));
  CHECK(static_cast<double>(beyond_two) / draws == Approx(0.0455).margin(0.002));
}

TEST_CASE("neighbouring keys are independent") {
  sample flipped;
  double together = 0;
  for (std::uint64_t i = 0; i < draws; ++i) {
    keyed_random a{3, i};
    keyed_random b{3, i + 1};
    flipped.add(std::popcount(keyed_random{3, i}.bits() ^ keyed_random{3, i + 1}.bits()));
    together += (a.uniform() - 0.5) * (b.uniform() - 0.5);
  }
  CHECK(flipped.mean() == Approx(32).margin(0.1));
  CHECK(together / draws * 12 == Approx(0).margin(0.01));
}

TEST_CASE("the order of the words, their number and the number of the draw all matter") {
  std::set<std::uint64_t> seen;
  for (const auto& key :
       {keyed_random{1, 2}, keyed_random{2, 1}, keyed_random{1, 2, 0}, keyed_random{0, 1, 2},
        keyed_random{1}, keyed_random{2}, keyed_random{}, keyed_random{0}, keyed_random{0, 0}}) {
    auto random = key;
    for (int draw = 0; draw < 3; ++draw) CHECK(seen.insert(random.bits()).second);
  }
}

TEST_CASE("small keys do not collide") {
  std::set<std::uint64_t> seen;
  for (std::uint64_t a = 0; a < 40; ++a)
    for (std::uint64_t b = 0; b < 40; ++b)
      for (std::uint64_t c = 0; c < 40; ++c) seen.insert(keyed_random{a, b, c}.bits());
  CHECK(seen.size() == 40 * 40 * 40);
}

TEST_CASE("the numbers never change between builds") {
  keyed_random random{1, 2, 3};
  CHECK(random.bits() == 0xe7e6bf21db71e737U);
  CHECK(random.bits() == 0xca725816e191f691U);
}

}  // namespace rrfp::simulate
