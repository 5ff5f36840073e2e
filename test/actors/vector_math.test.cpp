/// The first call of an MKL vector function must end before ranks compute. This program replaces
/// MKL's CPU detection and records when it is called.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "small_session.hpp"

#include <catch2/catch.hpp>

namespace {

std::atomic<int> calls = 0;
std::atomic<bool> first_call_ended = false;
std::atomic<int> early_calls = 0;

}  // namespace

extern "C" int mkl_vml_serv_cpu_detect() {
  static const auto real = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_vml_serv_cpu_detect"));
  if (calls++ == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    const int detected = real();
    first_call_ended = true;
    return detected;
  }
  if (!first_call_ended) ++early_calls;
  return real();
}

TEST_CASE("no rank calls an MKL vector function during the first call") {
  using namespace rrfp;
  using namespace rrfp::actors;
  const auto first = compute::test::small_train();
  auto opened = session::open(
      test::small_setup({{4, 1, 4, placement::linear}}, compute::test::small_model(), first));
  REQUIRE(opened);
  CHECK(first_call_ended);
  REQUIRE((*opened)->run().how == ending::done);
  CHECK(calls > 4);  // by the optimizers of all stages
  CHECK(early_calls == 0);
}
