#include <rrfp/core/clock_filter.hpp>

#include <catch2/catch.hpp>

namespace rrfp::membership_core {

TEST_CASE("The clock filter uses the quickest of the last 64 round trips") {
  clock_filter filter;
  CHECK(filter.offset() == 0);
  // The other clock is 1000 ahead; a slow way back adds 40 to the offset of a round trip of 120.
  filter.add(0, 1000 + 100, 120);
  CHECK(filter.offset() == 1040);
  filter.add(200, 1000 + 205, 210);
  CHECK(filter.offset() == 1000);
  for (int i = 0; i < 63; ++i) filter.add(1000, 3000 + 50, 1100);
  CHECK(filter.offset() == 1000);
  filter.add(1000, 3000 + 50, 1100);
  CHECK(filter.offset() == 2000);  // the clocks drifted, and the quick sample is too old
}

}  // namespace rrfp::membership_core
