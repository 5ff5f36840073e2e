#include <catch2/catch.hpp>

#include <rrfp/accelerator/assignment.hpp>

namespace rrfp::accelerator {

namespace {

using list = std::vector<std::uint32_t>;

list assigned(std::size_t ranks, const list& devices, bool alone = false) {
  return assign_devices(ranks, devices, alone).value();
}

}  // namespace

TEST_CASE("all devices are used unless some are named") {
  CHECK(choose_devices({}, 3).value() == list{0, 1, 2});
  CHECK(choose_devices(list{2, 0}, 3).value() == list{2, 0});
  CHECK(choose_devices(list{3}, 3).message() ==
        "expected devices 0 to 2, which this machine has, got 3");
  CHECK(choose_devices(list{1, 1}, 3).message() == "expected distinct devices, got 1 twice");
}

TEST_CASE("processes of one machine get even parts of its devices, or share them") {
  const list four{0, 1, 2, 3};
  CHECK(devices_of(four, 0, 1) == four);
  CHECK(devices_of(four, 0, 2) == list{0, 1});
  CHECK(devices_of(four, 1, 2) == list{2, 3});
  CHECK(devices_of(four, 1, 3) == list{1});
  CHECK(devices_of(four, 2, 3) == list{2, 3});
  CHECK(devices_of(list{5}, 3, 4) == list{5});
  const list two{0, 1};
  CHECK(devices_of(two, 1, 4) == list{0});
  CHECK(devices_of(two, 2, 4) == list{1});
}

TEST_CASE("consecutive stages share a device") {
  CHECK(assigned(4, {0, 1, 2, 3}) == list{0, 1, 2, 3});
  CHECK(assigned(4, {0, 1}) == list{0, 0, 1, 1});
  CHECK(assigned(3, {0, 1}) == list{0, 0, 1});
  CHECK(assigned(2, {4, 6, 7}) == list{4, 6});
  CHECK(assigned(4, {9}) == list{9, 9, 9, 9});
  CHECK(assigned(0, {0}).empty());
}

TEST_CASE("each rank of a group gets its own device") {
  CHECK(assigned(4, {0, 1, 2, 3}, true) == list{0, 1, 2, 3});
  CHECK(assigned(2, {5, 3, 1}, true) == list{5, 3});
  CHECK(assign_devices(4, list{0, 1}, true).message() ==
        "expected one device for each of the 4 ranks of this process, because their collectives "
        "run on the devices, "
        "got 2");
}

}  // namespace rrfp::accelerator
