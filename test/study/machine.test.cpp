#include <catch2/catch.hpp>

#include <rrfp/study/machine.hpp>

namespace rrfp::study {

namespace {

machine plain() {
  machine m;
  m.tflops = 100;
  m.memory_gb_s = 10'000;
  m.efficiency = 0.5;
  return m;
}

}  // namespace

TEST_CASE("a kernel takes the longer of compute and memory time, at the efficiency") {
  CHECK(kernel_s(plain(), 200e12, 0) == 4);
  CHECK(kernel_s(plain(), 200e12, 30e12) == 6);
  CHECK(kernel_s(plain(), 0, 0) == 0);
}

TEST_CASE("a message takes latency and transfer time, and sharing a link slows it down") {
  CHECK(transfer_s((link{50, 1}), 100) == 3);
  CHECK(transfer_s((link{50, 1}), 100, 2) == 5);
  CHECK(transfer_s((link{50, 1}), 0) == 1);
}

TEST_CASE("a ring all-reduce moves 2 (n-1)/n of the bytes in 2 (n-1) messages") {
  CHECK(all_reduce_s((link{50, 1}), 100, 1) == 0);
  CHECK(all_reduce_s((link{50, 1}), 100, 2) == 2 * (1 + 50.0 / 50));
  CHECK(all_reduce_s((link{50, 1}), 100, 4) == Approx(6 * (1 + 25.0 / 50)));
}

}  // namespace rrfp::study
