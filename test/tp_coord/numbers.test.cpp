/// Every rank gets the same bits, and they are those of the sum in rank order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <catch2/catch.hpp>

#include "groups.hpp"

namespace rrfp::tp_coord::test {

namespace {

using inputs = std::vector<std::vector<float>>;

/// Values of many magnitudes, so that another order of summation gives other bits.
inputs random_inputs(std::uint32_t ranks, std::size_t count) {
  std::mt19937 random(ranks * 1000 + static_cast<std::uint32_t>(count));
  std::normal_distribution<float> mantissa;
  std::uniform_int_distribution<int> exponent(-12, 12);
  inputs all(ranks, std::vector<float>(count));
  for (auto& x : all) {
    for (auto& v : x) v = std::ldexp(mantissa(random), exponent(random));
  }
  return all;
}

std::vector<float> sum_in_order(const inputs& all) {
  auto sum = all[0];
  for (std::size_t r = 1; r < all.size(); ++r) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += all[r][i];
  }
  return sum;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<std::string> no_errors(std::size_t ranks) { return std::vector<std::string>(ranks); }

}  // namespace

TEST_CASE("all-reduce gives every rank the bits of the sum in rank order") {
  for (const auto w : all_implementations) {
    for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 16u}) {
      auto members = make_group(w, ranks);
      for (const std::size_t count : {0, 1, 3, 7, 13, 1001, 4099}) {
        INFO(name(w) << ", " << ranks << " ranks, " << count << " elements");
        const auto given = random_inputs(ranks, count);
        auto buffers = given;
        const auto errors = run_all(members, [&](collective& c) {
          c.begin(site_of(1));
          return c.all_reduce(operation::sum, buffers[c.rank().value()].data(), count,
                              element::float32);
        });
        REQUIRE(errors == no_errors(ranks));
        const auto expected = sum_in_order(given);
        for (const auto& b : buffers) REQUIRE(same_bits(b, expected));
      }
    }
  }
}

TEST_CASE("another order of summation gives other bits") {
  auto given = random_inputs(5, 1001);
  const auto expected = sum_in_order(given);
  std::reverse(given.begin(), given.end());
  CHECK(!same_bits(sum_in_order(given), expected));
}

TEST_CASE("many consecutive collectives do not interfere") {
  constexpr std::uint32_t ranks = 4;
  for (const auto w : all_implementations) {
    INFO(name(w));
    auto members = make_group(w, ranks);
    std::vector<double> sums(ranks, -1);
    const auto errors = run_all(members, [&](collective& c) -> status {
      double sum = 0;
      for (std::uint32_t i = 0; i < 500; ++i) {
        if (i % 7 == 0) c.begin(site_of(i));
        std::vector<double> x(1 + i % 5, c.rank().value() + i);
        if (auto ok = c.all_reduce(operation::sum, x.data(), x.size(), element::float64); !ok) {
          return ok;
        }
        sum += x[0];
      }
      sums[c.rank().value()] = sum;
      return success();
    });
    CHECK(errors == no_errors(ranks));
    // Sum over i of 0 + 1 + 2 + 3 + 4 * i.
    CHECK(sums == std::vector<double>(ranks, 500 * 6 + 4 * 500 * 499 / 2));
  }
}

TEST_CASE("the maximum is that of all ranks, and a NaN is not lost") {
  constexpr std::uint32_t ranks = 3;
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto w : all_implementations) {
    for (std::uint32_t nan_at = 0; nan_at < ranks; ++nan_at) {
      INFO(name(w) << ", NaN on rank " << nan_at);
      auto members = make_group(w, ranks);
      std::vector<std::vector<float>> x(ranks);
      for (std::uint32_t r = 0; r < ranks; ++r) {
        x[r] = {r == 1 ? 5.0f : -1.0f, -2.0f - static_cast<float>(r), r == nan_at ? nan : 1.0f};
      }
      const auto errors = run_all(members, [&](collective& c) {
        return c.all_reduce(operation::max, x[c.rank().value()].data(), 3, element::float32);
      });
      CHECK(errors == no_errors(ranks));
      for (const auto& b : x) {
        CHECK(b[0] == 5.0f);
        CHECK(b[1] == -2.0f);
        CHECK(std::isnan(b[2]));
      }
    }
  }
}

TEST_CASE("int64 is summed exactly and wraps around") {
  for (const auto w : all_implementations) {
    auto members = make_group(w, 2);
    std::vector<std::vector<std::int64_t>> x{
        {(std::int64_t{1} << 60) + 1, std::numeric_limits<std::int64_t>::max()},
        {std::int64_t{1} << 60, 1}};
    run_all(members, [&](collective& c) {
      return c.all_reduce(operation::sum, x[c.rank().value()].data(), 2, element::int64);
    });
    for (const auto& b : x) {
      CHECK(b[0] == (std::int64_t{1} << 61) + 1);
      CHECK(b[1] == std::numeric_limits<std::int64_t>::min());
    }
  }
}

TEST_CASE("all-gather and broadcast deliver the data of the others, barriers none") {
  for (const auto w : all_implementations) {
    for (const std::uint32_t ranks : {1u, 2u, 5u}) {
      for (const std::size_t count : {0, 1, 3, 777}) {
        INFO(name(w) << ", " << ranks << " ranks, " << count << " elements");
        auto members = make_group(w, ranks);
        const auto given = random_inputs(ranks, count);
        std::vector<float> expected;
        for (const auto& x : given) expected.insert(expected.end(), x.begin(), x.end());
        inputs gathered(ranks, std::vector<float>(ranks * count));
        auto sent = given;
        const auto root = rank_id{ranks - 1};
        const auto errors = run_all(members, [&](collective& c) -> status {
          const auto r = c.rank().value();
          if (auto ok = c.barrier(); !ok) return ok;
          if (auto ok = c.all_gather(given[r].data(), gathered[r].data(), count, element::float32);
              !ok) {
            return ok;
          }
          return c.broadcast(sent[r].data(), count, element::float32, root);
        });
        CHECK(errors == no_errors(ranks));
        for (const auto& all : gathered) CHECK(same_bits(all, expected));
        for (const auto& x : sent) CHECK(same_bits(x, given[root.value()]));
      }
    }
  }
}

TEST_CASE(
    "a large all-reduce sends less than all data to all ranks, and leaves no message behind") {
  const auto post = std::make_shared<testing::local_post_office>();
  group members;
  for (std::uint32_t r = 0; r < 4; ++r) {
    members.push_back(make_channel_collective(
        std::make_shared<testing::local_channel>(rank_id{r}, 4, post), {std::chrono::seconds(20)}));
  }
  std::vector<std::vector<float>> x(4, std::vector<float>(100'000, 1.0f));
  const auto run = [&](std::size_t count) {
    run_all(members, [&](collective& c) {
      return c.all_reduce(operation::sum, x[c.rank().value()].data(), count, element::float32);
    });
    return post->sent();
  };
  CHECK(run(100) == 12);
  CHECK(run(100'000) == 12 + 3 * 12);
  CHECK(post->left() == 0);
}

}  // namespace rrfp::tp_coord::test
