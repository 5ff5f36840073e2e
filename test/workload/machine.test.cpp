#include <catch2/catch.hpp>

#include <rrfp/workload/machine.hpp>

namespace rrfp::workload {

namespace {

machine plain() {
  machine m;
  m.each = {"plain", 100, 10, 1000};
  m.within = {50, 1};
  m.between = {10, 2};
  m.efficiency = 0.5;
  return m;
}

}  // namespace

TEST_CASE("a kernel takes the longer of compute and memory time, at the efficiency") {
  CHECK(kernel_s(plain(), 200, 0) == 4);
  CHECK(kernel_s(plain(), 200, 30) == 6);
  CHECK(kernel_s(plain(), 0, 0) == 0);
}

TEST_CASE("a message takes latency and transfer time, and sharing a link slows it down") {
  CHECK(transfer_s(plain().within, 100) == 3);
  CHECK(transfer_s(plain().within, 100, 2) == 5);
  CHECK(transfer_s(plain().within, 0) == 1);
}

TEST_CASE("a ring all-reduce moves 2 (n-1)/n of the bytes in 2 (n-1) messages") {
  CHECK(all_reduce_s(plain().within, 100, 1) == 0);
  CHECK(all_reduce_s(plain().within, 100, 2) == 2 * (1 + 50.0 / 50));
  CHECK(all_reduce_s(plain().within, 100, 4) == Approx(6 * (1 + 25.0 / 50)));
}

TEST_CASE("an invalid machine value is named with its valid range") {
  CHECK(validate(rtx_4090_cluster()).ok());
  auto m = plain();
  m.efficiency = 1.5;
  CHECK(validate(m).message() == "efficiency: expected a number in (0, 1], got 1.500000");
  m = plain();
  m.each.peak_flops = 0;
  CHECK(validate(m).message().starts_with("peak_flops: expected a finite number > 0"));
  m = plain();
  m.group = 0;
  CHECK(validate(m).message() == "group: expected an integer >= 1, got 0");
  m = plain();
  m.layer_s = -1;
  CHECK(validate(m).message() == "layer_s: expected a finite number >= 0, got -1.000000");
}

}  // namespace rrfp::workload
