#include <rrfp/core/priority_bitmap.hpp>

#include <set>

#include <catch2/catch.hpp>

#include "death.hpp"
#include "test_policies.hpp"

namespace rrfp {
namespace {

constexpr auto none = priority_bitmap::none;

std::uint32_t first_in(const std::set<std::uint32_t>& set, std::uint32_t from, std::uint32_t end) {
  const auto found = set.lower_bound(from);
  return found != set.end() && *found < end ? *found : none;
}

std::uint32_t count(const std::set<std::uint32_t>& set, std::uint32_t from, std::uint32_t end) {
  return static_cast<std::uint32_t>(std::distance(set.lower_bound(from), set.lower_bound(end)));
}

}  // namespace

TEST_CASE("A bitmap of any size finds what a std::set finds") {
  const auto size = GENERATE(1U, 2U, 63U, 64U, 65U, 128U, 4095U, 4096U, 4097U, 300'000U);
  testing::random_source random{size};
  priority_bitmap bits{size};
  std::set<std::uint32_t> set;
  for (int i = 0; i < 20'000; ++i) {
    // Sparse half of the time and then dense; the ends are drawn often.
    auto at = random.one_in(4) ? random.below(2) * (size - 1) : random.below(size);
    if (random.one_in(i < 10'000 ? 2 : 4)) {
      if (!set.empty() && random.one_in(2)) at = *set.begin();
      bits.erase(at);
      set.erase(at);
    } else {
      bits.insert(at);
      set.insert(at);
    }
    REQUIRE(bits.test(at) == set.contains(at));
    const auto from = random.below(size + 1);
    const auto end = random.between(0, size);
    REQUIRE(bits.first_in(from, end) == first_in(set, from, end));
    REQUIRE(bits.first_in(0, size) == first_in(set, 0, size));
  }
  bits.clear();
  CHECK(bits.first_in(0, size) == none);
  bits.insert(size - 1);
  CHECK(bits.first_in(0, size) == size - 1);
}

TEST_CASE("An empty bitmap has no member") {
  const priority_bitmap bits{0};
  CHECK(bits.first_in(0, 0) == none);
  CHECK(bits.first_in(0, 100) == none);
  counted_bitmap counted{0};
  counted.fill();
  CHECK(counted.count() == 0);
  CHECK(counted.count(0, 0) == 0);
  CHECK(counted.first_in(0, 0) == none);
}

TEST_CASE("A counted bitmap counts any range as a std::set does while members are erased") {
  const auto size = GENERATE(1U, 63U, 64U, 65U, 4096U, 4097U);
  testing::random_source random{size};
  counted_bitmap bits{size};
  CHECK(bits.count() == 0);
  for (int round = 0; round < 2; ++round) {
    bits.fill();
    std::set<std::uint32_t> set;
    for (std::uint32_t i = 0; i < size; ++i) set.insert(set.end(), i);
    while (!set.empty()) {
      const auto from = random.below(size + 1);
      const auto end = random.between(from, size);
      REQUIRE(bits.count(from, end) == count(set, from, end));
      REQUIRE(bits.count(0, size) == set.size());
      REQUIRE(bits.count() == set.size());
      REQUIRE(bits.first_in(from, end) == first_in(set, from, end));
      const auto found = set.lower_bound(random.below(size));
      const auto gone = found == set.end() ? *set.begin() : *found;
      bits.erase(gone);
      set.erase(gone);
      if (round == 0 && set.size() < size / 2) break;
    }
  }
  CHECK(bits.count() == 0);
}

TEST_CASE("Erasing a task twice aborts") {
  counted_bitmap bits{10};
  bits.fill();
  bits.erase(3);
  CHECK_THAT(testing::abort_message([&] { bits.erase(3); }),
             Catch::Contains("a task is launched once per step"));
}

}  // namespace rrfp
