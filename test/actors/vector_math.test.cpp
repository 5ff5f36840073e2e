/// The first call of MKL's vector functions is over before ranks compute. This program takes the
/// place of MKL's question for the processor, and sees who asks it when.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "small_session.hpp"

#include <catch2/catch.hpp>

namespace {

std::atomic<int> asked = 0;
std::atomic<bool> is_settled = false;
std::atomic<int> asked_too_early = 0;

}  // namespace

extern "C" int mkl_vml_serv_cpu_detect() {
  static const auto real = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_vml_serv_cpu_detect"));
  if (asked++ == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    const int said = real();
    is_settled = true;
    return said;
  }
  if (!is_settled) ++asked_too_early;
  return real();
}

TEST_CASE("no rank calls a vector function of MKL while the first one is under way") {
  using namespace rrfp;
  using namespace rrfp::actors;
  const auto first = compute::test::small_train();
  auto opened = session::open(
      test::small_setup({{4, 1, 4, placement::linear}}, compute::test::small_model(), first));
  REQUIRE(opened);
  CHECK(is_settled);
  REQUIRE((*opened)->run().how == ending::done);
  CHECK(asked > 4);  // the optimizers of all stages, too
  CHECK(asked_too_early == 0);
}
