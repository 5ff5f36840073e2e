#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include <rrfp/study/spreads.hpp>

namespace rrfp::study {

namespace {

constexpr std::uint64_t draws = 100'000;

struct census {
  double mean = 0;
  std::uint32_t least = ~0U;
  std::uint32_t most = 0;
  double zeros = 0;
};

census of(const image_counts& counts) {
  census c;
  for (std::uint64_t mb = 0; mb < draws; ++mb) {
    const auto n = images_of(counts, 1, step_id{0}, mb, 1).front();
    c.mean += n / double{draws};
    c.least = std::min(c.least, n);
    c.most = std::max(c.most, n);
    c.zeros += n == 0 ? 1 / double{draws} : 0;
  }
  return c;
}

}  // namespace

TEST_CASE("the fixed spread gives its mean") {
  const auto c = of({image_spread::fixed, 3, 8});
  CHECK(c.least == 3);
  CHECK(c.most == 3);
}

TEST_CASE("uniform images range from 0 to twice the mean") {
  const auto c = of({image_spread::uniform, 3, 8});
  CHECK(c.mean == Approx(3).epsilon(0.01));
  CHECK(c.least == 0);
  CHECK(c.most == 6);
}

TEST_CASE("geometric images have their mean before the cut, and never exceed `most`") {
  const auto whole = of({image_spread::geometric, 2, 64});
  CHECK(whole.mean == Approx(2).epsilon(0.02));
  CHECK(whole.zeros == Approx(1.0 / 3).epsilon(0.02));
  const auto cut = of({image_spread::geometric, 2, 8});
  CHECK(cut.most == 8);
  // sum over n from 0 to 7 of P(more than n) = sum of (2/3)^(n+1)
  CHECK(cut.mean == Approx(2 * (1 - std::pow(2.0 / 3, 8))).epsilon(0.02));
  CHECK(of({image_spread::geometric, 0, 8}).most == 0);
}

TEST_CASE("images depend only on seed, step and microbatch") {
  const image_counts counts{image_spread::geometric, 20, 64};
  const auto at = [&](std::uint64_t seed, std::uint64_t step, std::uint64_t mb) {
    return images_of(counts, seed, step_id{step}, mb, 1);
  };
  CHECK(at(1, 2, 3) == at(1, 2, 3));
  int differ = 0;
  for (std::uint64_t i = 0; i < 50; ++i)
    differ += (at(i, 2, 3) != at(i + 1, 2, 3)) + (at(1, i, 3) != at(1, i + 1, 3)) +
              (at(1, 2, i) != at(1, 2, i + 1));
  CHECK(differ > 120);
}

TEST_CASE("every sample has images of its own") {
  CHECK(images_of({image_spread::fixed, 3, 8}, 1, step_id{0}, 0, 4) ==
        std::vector<std::uint32_t>{3, 3, 3, 3});
  const auto drawn = images_of({image_spread::uniform, 3, 8}, 1, step_id{0}, 0, 64);
  CHECK(drawn.size() == 64);
  CHECK(std::set(drawn.begin(), drawn.end()).size() > 3);
}

}  // namespace rrfp::study
