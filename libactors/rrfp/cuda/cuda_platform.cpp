#include <cstring>
#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <rrfp/accelerator/platform.hpp>
#include <rrfp/nccl/nccl_collective.hpp>

#include "cuda_call.hpp"
#include "cuda_lane.hpp"

namespace rrfp::cuda {

namespace {

using tp_coord::element;

at::ScalarType scalar_type_of(element e) {
  switch (e) {
    case element::float32: return at::kFloat;
    case element::float64: return at::kDouble;
    case element::int64: return at::kLong;
  }
  return at::kFloat;
}

/// NCCL collectives use the current stream of the calling thread, because the backward of a launch
/// may run on one of libtorch's own threads.
class torch_streams final : public nccl::stream_host {
 public:
  explicit torch_streams(std::shared_ptr<accelerator::lane> rank_lane)
      : rank_lane_(std::move(rank_lane)) {}

  int device() const override { return rank_lane_->device().index(); }
  cudaStream_t stream() override {
    return c10::cuda::getCurrentCUDAStream(rank_lane_->device().index()).stream();
  }

  result<std::shared_ptr<void>> scratch(std::size_t bytes) override {
    try {
      const auto memory = std::make_shared<at::Tensor>(
          at::empty({static_cast<std::int64_t>(bytes)},
                    at::TensorOptions{at::kByte}.device(rank_lane_->device())));
      return std::shared_ptr<void>{memory, memory->mutable_data_ptr()};
    } catch (const std::exception& e) {
      return failure_of(e);
    }
  }

  status sum_in_order(void* sum, const void* parts, std::size_t count, std::uint32_t ranks,
                      element type) override {
    try {
      const at::NoGradGuard no_grad;
      const auto options = at::TensorOptions{scalar_type_of(type)}.device(rank_lane_->device());
      const auto length = static_cast<std::int64_t>(count);
      auto total = at::from_blob(sum, {length}, options);
      // `parts` is only read.
      const auto all = at::from_blob(const_cast<void*>(parts), {ranks, length}, options);
      total.copy_(all[0]);
      for (std::uint32_t r = 1; r < ranks; ++r) total.add_(all[r]);
      return success();
    } catch (const std::exception& e) {
      return failure_of(e);
    }
  }

 private:
  const std::shared_ptr<accelerator::lane> rank_lane_;
};

class cuda_platform final : public accelerator::platform {
 public:
  static result<std::shared_ptr<accelerator::platform>> open(bool deterministic);

  const std::vector<std::string>& devices() const override { return devices_; }

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
    // With a device of this process current: otherwise the call could create a context on another.
    const c10::cuda::OptionalCUDAGuard guard{first_};
    // Pinned for all devices, and page-aligned.
    const auto code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    return checked("cudaHostAlloc", 0, code) ? memory : nullptr;
  }
  void free_pinned(void* memory) override { static_cast<void>(cudaFreeHost(memory)); }

  std::shared_ptr<tp_coord::collective> make_collective(
      std::shared_ptr<tp_coord::collective> control, std::shared_ptr<accelerator::lane> rank_lane,
      const tp_coord::collective_options& options) override {
    return nccl::make_nccl_collective(
        std::move(control), std::make_unique<torch_streams>(std::move(rank_lane)), options);
  }

 private:
  explicit cuda_platform(std::vector<std::string> devices) : devices_(std::move(devices)) {}

  const std::vector<std::string> devices_;
  std::optional<c10::DeviceIndex> first_;  ///< the first device with a lane
};

/// The error for a missing driver or device, with what to do.
error no_device(cudaError_t code) {
  const auto detail = std::string{": cudaGetDeviceCount returned "} + cudaGetErrorName(code) +
                      ", " + cudaGetErrorString(code);
  int driver = 0;
  int runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  const auto version = [](int v) {
    return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  };
  if (driver == 0)
    return error{"this machine has no NVIDIA driver, expected one for CUDA " + version(runtime) +
                 detail};
  if (driver < runtime && code == cudaErrorInsufficientDriver)
    return error{"expected an NVIDIA driver for CUDA " + version(runtime) + ", got one for " +
                 version(driver) + detail};
  return error{"this machine has no usable CUDA device" + detail};
}

/// Fixes the order of sums, and selects no kernel by timing.
void make_deterministic() {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Filling costs a pass over all new memory, and this program never reads uninitialized memory.
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

result<std::shared_ptr<accelerator::platform>> cuda_platform::open(bool deterministic) {
  int count = 0;
  if (const auto code = cudaGetDeviceCount(&count); code != cudaSuccess || count == 0)
    return no_device(code == cudaSuccess ? cudaErrorNoDevice : code);
  std::vector<std::string> devices;
  for (int d = 0; d < count; ++d) {
    cudaDeviceProp properties{};
    if (auto ok = checked("cudaGetDeviceProperties", d, cudaGetDeviceProperties(&properties, d));
        !ok)
      return ok.failure();
    devices.emplace_back(properties.name);
  }
  // libtorch looks for its CUDA part only once, at the first seed or backward.
  if (!at::detail::getCUDAHooks().hasCUDA())
    return error{
        "libtorch was used in this process before its CUDA part was loaded; call load_cuda() "
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
  if (std::strcmp(version, rrfp::accelerator::plugin_version) != 0) {
    answer.failure =
        std::string{"librrfp_cuda.so comes from another build than the program: expected "} +
        version + ", got " + rrfp::accelerator::plugin_version;
    return;
  }
  auto made = rrfp::cuda::cuda_platform::open(deterministic);
  if (made)
    answer.made = std::move(*made);
  else
    answer.failure = made.message();
}
