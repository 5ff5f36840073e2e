/// Which copies a node keeps.
#include <catch2/catch.hpp>

#include <rrfp/core/copy_set.hpp>

namespace rrfp {
namespace {

held_copy copy_of_rank(std::uint64_t step, std::uint32_t rank = 0) {
  return {{step, stage_id{0}, rank_id{rank}}, 8, step};
}
job_record record_of(std::uint64_t step) { return {step, "record"}; }

std::vector<std::uint64_t> steps_of(const std::vector<copy_key>& keys) {
  std::vector<std::uint64_t> all;
  for (const auto& k : keys) all.push_back(k.step);
  return all;
}
std::vector<std::uint64_t> steps_of(const copy_set& set) {
  std::vector<copy_key> keys;
  for (const auto& h : set.held()) keys.push_back(h.what);
  return steps_of(keys);
}

using steps = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("a record drops the copies of the steps before it, and no other") {
  copy_set set;
  CHECK(set.record().bytes.empty());
  CHECK(set.put(copy_of_rank(1), 0).empty());
  CHECK(set.put(copy_of_rank(1, 1), 0).empty());
  CHECK(set.keep(record_of(1)).empty());
  CHECK(set.put(copy_of_rank(2), 1).empty());
  CHECK(set.put(copy_of_rank(2, 1), 1).empty());
  CHECK(steps_of(set) == steps{1, 1, 2, 2});
  CHECK(steps_of(set.keep(record_of(2))) == steps{1, 1});
  CHECK(steps_of(set) == steps{2, 2});
  CHECK(set.record() == record_of(2));
}

TEST_CASE("a copy drops those of its rank that were given up, and none of another rank") {
  copy_set set;
  set.put(copy_of_rank(1), 0);
  set.put(copy_of_rank(1, 1), 0);
  set.keep(record_of(1));
  set.put(copy_of_rank(2), 1);
  set.put(copy_of_rank(2, 1), 1);
  CHECK(steps_of(set.put(copy_of_rank(3), 1)) == steps{2});
  CHECK(steps_of(set) == steps{1, 1, 2, 3});
}

TEST_CASE("after a loss, a copy drops those of later steps that are made again") {
  copy_set set;
  set.put(copy_of_rank(4), 0);
  set.keep(record_of(4));
  set.put(copy_of_rank(5), 4);
  CHECK(steps_of(set.put(copy_of_rank(4), 4)) == steps{5});
  CHECK(steps_of(set) == steps{4});
}

TEST_CASE("a copy of a complete step stays until its record or a newer one is here") {
  copy_set set;
  set.put(copy_of_rank(1), 0);
  set.keep(record_of(1));
  set.put(copy_of_rank(2), 1);
  // The record of step 2 is late.
  CHECK(set.put(copy_of_rank(3), 2).empty());
  CHECK(steps_of(set) == steps{1, 2, 3});
  CHECK(steps_of(set.keep(record_of(2))) == steps{1});
  CHECK(steps_of(set.keep(record_of(3))) == steps{2});
}

TEST_CASE("a copy that comes again replaces itself") {
  copy_set set;
  set.put(copy_of_rank(1), 0);
  auto again = copy_of_rank(1);
  again.xxh64 = 77;
  CHECK(set.put(again, 0).empty());
  REQUIRE(set.held().size() == 1);
  CHECK(set.held()[0].xxh64 == 77);
}

}  // namespace rrfp
