#include <cstring>
#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAGuard.h>

#include <rrfp/accelerator/platform.hpp>

#include "cuda_call.hpp"
#include "cuda_collective.hpp"
#include "cuda_lane.hpp"

namespace rrfp::cuda {

namespace {

class cuda_platform final : public accelerator::platform {
 public:
  static result<std::shared_ptr<accelerator::platform>> open(bool deterministic);

  const std::vector<accelerator::device_info>& devices() const override { return devices_; }

  result<std::shared_ptr<accelerator::lane>> open_lane(std::uint32_t device) override {
    if (!first_) first_ = static_cast<c10::DeviceIndex>(device);
    return cuda_lane::open(static_cast<c10::DeviceIndex>(device));
  }

  status enter_thread() override {
    const int device = first_.value_or(0);
    return checked("cudaSetDevice", device, cudaSetDevice(device));
  }

  void* allocate_pinned(std::size_t bytes) override {
    void* memory = nullptr;
    // By a device of this process: a thread that named none would set up another one's context.
    const c10::cuda::OptionalCUDAGuard guard{first_};
    // Pinned for all devices, and aligned to pages.
    const auto said = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    return checked("cudaHostAlloc", 0, said) ? memory : nullptr;
  }
  void free_pinned(void* memory) override { static_cast<void>(cudaFreeHost(memory)); }

  std::shared_ptr<tp_coord::collective> make_collective(
      std::shared_ptr<tp_coord::collective> control, std::shared_ptr<accelerator::lane> where,
      const accelerator::collective_options& options) override {
    return make_cuda_collective(std::move(control), std::move(where), options);
  }

 private:
  explicit cuda_platform(std::vector<accelerator::device_info> devices)
      : devices_(std::move(devices)) {}

  const std::vector<accelerator::device_info> devices_;
  std::optional<c10::DeviceIndex> first_;  ///< that has a lane
};

/// What is missing, in words that say what to do.
error no_device(cudaError_t said) {
  const auto heard = std::string{": cudaGetDeviceCount says "} + cudaGetErrorName(said) + ", " +
                     cudaGetErrorString(said);
  int driver = 0;
  int runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  const auto version = [](int v) {
    return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  };
  if (driver == 0)
    return error{"this machine has no NVIDIA driver, expected one for CUDA " + version(runtime) +
                 heard};
  if (driver < runtime && said == cudaErrorInsufficientDriver)
    return error{"expected an NVIDIA driver for CUDA " + version(runtime) + ", got one for " +
                 version(driver) + heard};
  return error{"this machine has no CUDA device that may be used" + heard};
}

/// Sums in one order, and no kernel chosen by how fast it was the last time.
void make_deterministic() {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Costs a pass over all new memory, and nothing here reads what it has not written.
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

result<std::shared_ptr<accelerator::platform>> cuda_platform::open(bool deterministic) {
  int count = 0;
  if (const auto said = cudaGetDeviceCount(&count); said != cudaSuccess || count == 0)
    return no_device(said == cudaSuccess ? cudaErrorNoDevice : said);
  std::vector<accelerator::device_info> devices;
  for (int d = 0; d < count; ++d) {
    cudaDeviceProp properties{};
    if (auto ok = checked("cudaGetDeviceProperties", d, cudaGetDeviceProperties(&properties, d));
        !ok)
      return ok.failure();
    devices.push_back({properties.name, properties.totalGlobalMem});
  }
  // libtorch looks for its CUDA part once, at the first seed or backward.
  if (!at::detail::getCUDAHooks().hasCUDA())
    return error{
        "libtorch was used in this process before its CUDA part was loaded, expected load_cuda() "
        "before the first seed and the first backward"};
  try {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  } catch (const std::exception& e) {
    return error{"libtorch cannot use CUDA: " + failure_of(e).message};
  }
  if (deterministic) make_deterministic();
  return std::shared_ptr<accelerator::platform>{new cuda_platform{std::move(devices)}};
}

}  // namespace

}  // namespace rrfp::cuda

extern "C" __attribute__((visibility("default"))) void rrfp_open_platform(
    const char* version, bool deterministic, rrfp::accelerator::opened& answer) {
  if (std::strcmp(version, rrfp::accelerator::door_version) != 0) {
    answer.failure =
        std::string{"librrfp_cuda.so is of another build than the program: expected "} + version +
        ", got " + rrfp::accelerator::door_version;
    return;
  }
  auto made = rrfp::cuda::cuda_platform::open(deterministic);
  if (made)
    answer.made = std::move(*made);
  else
    answer.failure = made.message();
}
