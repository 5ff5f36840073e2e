#include <algorithm>
#include <numeric>
#include <random>

#include <catch2/catch.hpp>

#include <rrfp/core/sequence_window.hpp>

namespace rrfp::messaging {

using verdict = sequence_window::verdict;

TEST_CASE("A sequence window accepts each number once, in any order") {
  std::vector<std::uint64_t> numbers(50'000);
  std::iota(numbers.begin(), numbers.end(), 0U);
  std::mt19937 random{GENERATE(1U, 2U, 3U)};
  std::shuffle(numbers.begin(), numbers.end(), random);
  sequence_window window;
  std::size_t wrong = 0;
  for (const auto n : numbers) wrong += window.take(n) != verdict::fresh;
  for (const auto n : numbers) wrong += window.take(n) != verdict::duplicate;
  CHECK(wrong == 0);
}

TEST_CASE("A missing number fills the window, whose memory is bounded") {
  sequence_window window;
  std::uint64_t n = 1;  // 0 is lost
  while (window.take(n) == verdict::fresh) ++n;
  CHECK(n == sequence_window::window_max);
  CHECK(window.take(n) == verdict::too_far);
  CHECK(window.take(UINT64_MAX) == verdict::too_far);
  CHECK(window.take(5) == verdict::duplicate);
  CHECK(window.take(0) == verdict::fresh);
  CHECK(window.take(n) == verdict::fresh);
}

TEST_CASE("Whatever numbers are lost, late or repeated, none is accepted twice in bounded memory") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    const auto reach = 1 + random() % (2 * sequence_window::window_max);
    sequence_window window;
    std::vector<bool> accepted(20'003 + reach);
    std::uint64_t oldest_missing = 0;
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      const auto n = i + random() % (random() % 2 == 0 ? 3 : reach);
      const auto known = accepted[n];
      const auto got = window.take(n);
      // Too far is only a number that the window cannot hold; the limit is rounded down to a word.
      if (got == verdict::too_far)
        wrong += n < oldest_missing / 64 * 64 + sequence_window::window_max;
      else
        wrong += got != (known ? verdict::duplicate : verdict::fresh);
      if (got == verdict::fresh) accepted[n] = true;
      while (accepted[oldest_missing]) ++oldest_missing;
      wrong += window.words() > sequence_window::window_max / 64;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace rrfp::messaging
