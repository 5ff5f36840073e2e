// Every epoch holds each sample once, in an order that follows from seed and epoch alone.
#include <rrfp/data/epoch_order.hpp>

#include <algorithm>
#include <numeric>
#include <thread>

#include <catch2/catch.hpp>

namespace rrfp::data::test {

namespace {

using numbers = std::vector<std::uint32_t>;

numbers counted_up(std::uint32_t count) {
  numbers all(count);
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

numbers sorted(numbers n) {
  std::sort(n.begin(), n.end());
  return n;
}

}  // namespace

TEST_CASE("a shuffle holds each number once and follows from seed and epoch") {
  for (const std::uint32_t count : {1U, 2U, 3U, 17U, 1000U}) {
    const auto order = shuffled(count, 7, 3);
    CHECK(sorted(order) == counted_up(count));
    CHECK(order == shuffled(count, 7, 3));
  }
  CHECK(shuffled(1000, 7, 3) != counted_up(1000));
  CHECK(shuffled(1000, 7, 3) != shuffled(1000, 7, 4));
  CHECK(shuffled(1000, 7, 3) != shuffled(1000, 8, 3));
}

TEST_CASE("a shuffle puts every number at every position about equally often") {
  constexpr std::uint32_t count = 5, epochs = 5000;
  std::vector<std::uint32_t> hits(count * count);
  for (std::uint64_t e = 0; e < epochs; ++e) {
    const auto order = shuffled(count, 1, e);
    for (std::uint32_t place = 0; place < count; ++place) ++hits[count * place + order[place]];
  }
  // Mean 1000, standard deviation 28.
  for (const auto n : hits) CHECK((n > 850 && n < 1150));
}

TEST_CASE("the positions of a run are consecutive epochs") {
  const epoch_order order{10, 3, job::sample_order::shuffled};
  numbers run;
  for (std::uint64_t place = 0; place < 30; place += 3) {
    const auto three = order.at(place, 3);  // 9 to 11 lie across a border
    run.insert(run.end(), three.begin(), three.end());
  }
  for (std::uint64_t e = 0; e < 3; ++e) {
    const numbers epoch(run.begin() + 10 * static_cast<std::ptrdiff_t>(e),
                        run.begin() + 10 * static_cast<std::ptrdiff_t>(e + 1));
    CHECK(epoch == shuffled(10, 3, e));
  }
  CHECK(order.at(0, 30) == run);
  CHECK(order.at(1'000'000, 2) == epoch_order{10, 3, job::sample_order::shuffled}.at(1'000'000, 2));
}

TEST_CASE("more positions than samples span several epochs") {
  const epoch_order order{3, 1, job::sample_order::shuffled};
  const auto samples = order.at(2, 10);
  REQUIRE(samples.size() == 10);
  for (std::size_t i = 1; i + 3 <= samples.size(); i += 3)
    CHECK(sorted({samples[i], samples[i + 1], samples[i + 2]}) == counted_up(3));
}

TEST_CASE("in file order every epoch has the order of the files") {
  const epoch_order order{4, 3, job::sample_order::file};
  CHECK(order.at(2, 7) == numbers{2, 3, 0, 1, 2, 3, 0});
}

TEST_CASE("threads that read different epochs at once see the same orders") {
  const epoch_order order{500, 9, job::sample_order::shuffled};
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 40; ++i) {
        const auto epoch = (i * (t + 1)) % 5;
        if (order.at(500 * epoch, 500) != shuffled(500, 9, epoch)) ++wrong[t];
      }
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == std::vector<int>(4));
}

}  // namespace rrfp::data::test
