#include <rrfp/torch/split_trial.hpp>

#include <catch2/catch.hpp>

namespace rrfp::compute {

namespace {

/// Runs backwards until the trial has decided; the first of each way are slow.
bool splits_after(std::int64_t fused_ns, std::int64_t split_ns) {
  split_trial trial;
  int first_ones = 2;
  for (int i = 0; !trial.is_decided(); ++i) {
    REQUIRE(i < 100);
    const auto is_split = trial.splits_next();
    CHECK(is_split == (i % 2 == 0));
    trial.add(is_split, (is_split ? split_ns : fused_ns) * (first_ones-- > 0 ? 50 : 1));
  }
  const auto splits = trial.splits_next();
  CHECK(trial.splits_next() == splits);
  trial.add(true, 1);  // too late
  CHECK(trial.splits_next() == splits);
  return splits;
}

}  // namespace

TEST_CASE("weight gradients run in W unless that makes backward a tenth longer") {
  CHECK(splits_after(1000, 990));
  CHECK(splits_after(1000, 1100));
  CHECK_FALSE(splits_after(1000, 1101));
  CHECK_FALSE(splits_after(20, 30));
}

}  // namespace rrfp::compute
