#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/core/memory.hpp>

#include "death.hpp"

namespace rrfp {
namespace {

microbatch_id mb(std::uint32_t i) { return microbatch_id{i}; }

memory_slots slots_of(memory_limit limit, std::uint32_t microbatches,
                      const std::vector<std::uint64_t>& bytes = {}, std::uint32_t chunks = 1) {
  memory_slots slots{limit, microbatches, chunks};
  slots.reset(bytes);
  return slots;
}

}  // namespace

TEST_CASE("Without a limit every microbatch may take a slot, in any order") {
  auto slots = slots_of({}, 3);
  for (const auto i : {2U, 0U, 1U}) {
    CHECK(slots.may_take(mb(i)));
    slots.take(mb(i));
    CHECK(slots.holds(mb(i)));
  }
  CHECK(slots.use().slots == 3);
  CHECK(slots.oldest_waiting() == 3);
}

TEST_CASE("The oldest waiting microbatch skips those that took their slot early") {
  auto slots = slots_of({}, 4);
  slots.take(mb(1));
  slots.take(mb(2));
  CHECK(slots.oldest_waiting() == 0);
  slots.take(mb(0));
  CHECK(slots.oldest_waiting() == 3);
}

TEST_CASE("A young microbatch may not take the last slot while an older one has had none") {
  auto slots = slots_of({2, 0, 0}, 4);
  CHECK(slots.may_take(mb(2)));
  slots.take(mb(2));
  CHECK(slots.fits(mb(3)));
  CHECK_FALSE(slots.may_take(mb(3)));
  CHECK_FALSE(slots.may_take(mb(1)));
  CHECK(slots.may_take(mb(0)));
  slots.take(mb(0));
  CHECK_FALSE(slots.fits(mb(1)));
  CHECK_FALSE(slots.may_take(mb(1)));
}

TEST_CASE("A younger microbatch leaves the activations that the oldest one has yet to take") {
  auto slots = slots_of({.activations = 3}, 3, {}, 2);
  CHECK(slots.must_take(mb(0)));
  slots.take(mb(0));
  slots.activation_begins();
  CHECK(slots.must_take(mb(0)));
  CHECK(slots.may_take(mb(1)));  // one is left for chunk 1 of microbatch 0
  slots.take(mb(1));
  slots.activation_begins();
  CHECK(slots.fits(mb(2)));
  CHECK_FALSE(slots.may_take(mb(1)));
  CHECK_FALSE(slots.may_take(mb(2)));
  CHECK(slots.may_take(mb(0)));
  slots.take(mb(0));
  slots.activation_begins();
  CHECK(slots.bound_on_taking(mb(1)) == memory_bound::activations);
  slots.activation_ends(mb(0));
  CHECK(slots.holds(mb(0)));
  CHECK(slots.may_take(mb(1)));
  slots.activation_ends(mb(0));
  CHECK_FALSE(slots.holds(mb(0)));
  CHECK(slots.use().activations_peak == 3);
}

TEST_CASE("A limit of activations below the chunks of the stage is a broken invariant") {
  CHECK_THAT(testing::abort_message([] { memory_slots({.activations = 1}, 3, 2); }),
             Catch::Contains("at least the number of chunks"));
}

TEST_CASE("A single slot can only go to the oldest microbatch") {
  auto slots = slots_of({1, 0, 0}, 3);
  CHECK_FALSE(slots.may_take(mb(1)));
  CHECK_FALSE(slots.may_take(mb(2)));
  CHECK(slots.may_take(mb(0)));
}

TEST_CASE("Enough bytes stay free for the largest waiting older microbatch") {
  auto slots = slots_of({0, 10, 0}, 3, {6, 2, 5});
  CHECK_FALSE(slots.may_take(mb(2)));  // 5 + 6 > 10
  CHECK(slots.may_take(mb(1)));        // 2 + 6
  slots.take(mb(1));
  CHECK(slots.may_take(mb(0)));
  slots.take(mb(0));
  CHECK(slots.use().bytes == 8);
  CHECK_FALSE(slots.may_take(mb(2)));
}

TEST_CASE("No bytes stay reserved for a microbatch that has already had its slot") {
  auto slots = slots_of({0, 10, 0}, 4, {1, 9, 4, 4});
  slots.take(mb(0));
  slots.take(mb(1));
  slots.activation_begins();
  slots.activation_ends(mb(1));
  CHECK(slots.may_take(mb(3)));  // 1 + 4, and 4 for microbatch 2
}

TEST_CASE("A microbatch larger than the limit runs alone, and no younger one goes before it") {
  auto slots = slots_of({0, 10, 0}, 3, {3, 25, 1});
  slots.take(mb(0));
  CHECK_FALSE(slots.may_take(mb(1)));
  CHECK_FALSE(slots.may_take(mb(2)));  // 25 would not fit
  slots.activation_begins();
  slots.activation_ends(mb(0));
  CHECK(slots.may_take(mb(1)));
  slots.take(mb(1));
  CHECK_FALSE(slots.may_take(mb(2)));
  CHECK(slots.use().bytes_peak == 25);
}

TEST_CASE("The limits on slots and bytes both apply") {
  auto slots = slots_of({2, 10, 0}, 3, {1, 1, 1});
  slots.take(mb(0));
  slots.take(mb(1));
  CHECK(slots.use().bytes == 2);
  CHECK_FALSE(slots.may_take(mb(2)));
}

TEST_CASE("A microbatch releases its slot when its last chunk is folded") {
  auto slots = slots_of({1, 0, 0}, 2, {7, 7}, 2);
  slots.take(mb(0));
  slots.activation_begins();
  slots.activation_begins();
  CHECK(slots.use() == memory_use{1, 1, 7, 7, 2, 2});
  slots.activation_ends(mb(0));
  CHECK(slots.holds(mb(0)));
  CHECK_FALSE(slots.may_take(mb(1)));
  slots.activation_ends(mb(0));
  CHECK_FALSE(slots.holds(mb(0)));
  CHECK(slots.may_take(mb(1)));
  CHECK(slots.use() == memory_use{0, 1, 0, 7, 0, 2});
}

TEST_CASE("reset() clears the step, its peaks and its bytes") {
  auto slots = slots_of({1, 0, 0}, 2, {7, 7});
  slots.take(mb(0));
  slots.reset({});
  CHECK(slots.use() == memory_use{});
  CHECK(slots.oldest_waiting() == 0);
  slots.take(mb(0));
  CHECK(slots.use().bytes == 0);
}

TEST_CASE(
    "A slot taken twice, a slot released before it is taken, and a wrong number of slot_bytes "
    "abort") {
  using testing::abort_message;
  auto slots = slots_of({}, 2);
  slots.take(mb(0));
  CHECK_THAT(abort_message([&] { slots.take(mb(0)); }), Catch::Contains("takes its slot once"));
  CHECK_THAT(abort_message([&] { (void)slots.may_take(mb(0)); }),
             Catch::Contains("takes its slot once"));
  CHECK_THAT(abort_message([&] { slots.activation_ends(mb(1)); }), Catch::Contains("with a slot"));
  const std::vector<std::uint64_t> one{1};
  CHECK_THAT(abort_message([&] { slots.reset(one); }), Catch::Contains("one entry per microbatch"));
}

}  // namespace rrfp
