#include <unistd.h>

#include <catch2/catch.hpp>

#include <rrfp/accelerator/load.hpp>

namespace rrfp::accelerator {

TEST_CASE("without a driver, loading fails and says so") {
  const auto loaded = load_cuda(true);
#ifdef RRFP_HAS_CUDA
  if (loaded) {
    CHECK_FALSE((*loaded)->devices().empty());
    WARN("skipped: this machine has a CUDA device");
    return;
  }
  CAPTURE(loaded.message());
  const bool has_driver_files = access("/dev/nvidiactl", F_OK) == 0;
  if (!has_driver_files)
    CHECK_THAT(loaded.message(), Catch::Contains("this machine has no NVIDIA driver") &&
                                     Catch::Contains("cudaGetDeviceCount"));
  CHECK(loaded.message().find('\n') == std::string::npos);
#else
  CHECK(loaded.message() ==
        "this build has no CUDA part: librrfp_cuda.so is not beside the program");
#endif
}

TEST_CASE("a second attempt gives the same result") {
  const auto first = load_cuda(true);
  const auto second = load_cuda(true);
  REQUIRE(first.ok() == second.ok());
  if (!first) CHECK(first.message() == second.message());
}

}  // namespace rrfp::accelerator
