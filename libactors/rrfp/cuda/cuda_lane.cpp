#include "cuda_lane.hpp"

#include <map>
#include <mutex>

#include <ATen/cuda/PeerToPeerAccess.h>
#include <ATen/cuda/Sleep.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <rrfp/base/check.hpp>

#include "cuda_call.hpp"

namespace rrfp::cuda {

namespace {

class cuda_event final : public accelerator::event {
 public:
  static result<std::unique_ptr<accelerator::event>> make(int device, bool timed) {
    cudaEvent_t made = nullptr;
    const auto flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    if (auto ok =
            checked("cudaEventCreateWithFlags", device, cudaEventCreateWithFlags(&made, flags));
        !ok)
      return ok.failure();
    return std::unique_ptr<accelerator::event>{new cuda_event{device, made}};
  }
  ~cuda_event() override { static_cast<void>(cudaEventDestroy(event_)); }

  result<bool> query() override {
    // The calling thread may have no current device, and the default may belong to another process.
    const c10::cuda::CUDAGuard guard{static_cast<c10::DeviceIndex>(device_)};
    const auto code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      // "Not ready" is not an error, but a later check would report it as one.
      static_cast<void>(cudaGetLastError());
      return false;
    }
    if (auto ok = checked("cudaEventQuery", device_, code); !ok) return ok.failure();
    return true;
  }

  cudaEvent_t handle() const { return event_; }

 private:
  cuda_event(int device, cudaEvent_t e) : device_(device), event_(e) {}

  const int device_;
  const cudaEvent_t event_;
};

/// A stream in which nothing ever runs. The allocator therefore reuses its memory only when all
/// streams that have claimed the memory are done. One per device, and not from libtorch's pool,
/// which hands out its streams to other users.
result<c10::cuda::CUDAStream> receive_buffer_stream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, cudaStream_t> made;
  const std::lock_guard lock{mutex};
  auto& stream = made[device];
  if (stream == nullptr) {
    const c10::cuda::CUDAGuard guard{device};
    if (auto ok = checked("cudaStreamCreateWithFlags", device,
                          cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        !ok)
      return ok.failure();
  }
  return c10::cuda::getStreamFromExternal(stream, device);
}

cudaEvent_t handle_of(accelerator::event& e) { return static_cast<cuda_event&>(e).handle(); }

}  // namespace

result<std::shared_ptr<accelerator::lane>> cuda_lane::open(c10::DeviceIndex device) {
  int clock_khz = 0;
  if (auto ok = checked("cudaDeviceGetAttribute(cudaDevAttrClockRate)", device,
                        cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device));
      !ok)
    return ok.failure();
  try {
    auto receive_buffers = receive_buffer_stream(device);
    if (!receive_buffers) return receive_buffers.failure();
    // The peak of this run: its ranks open their lanes before it begins.
    c10::cuda::CUDACachingAllocator::resetPeakStats(device);
    // Copies are short and other ranks wait for them: they get a high-priority stream.
    return std::shared_ptr<accelerator::lane>{
        new cuda_lane{c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device),
                      c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device),
                      *receive_buffers, clock_khz}};
  } catch (const c10::Error& e) {
    return failure_of(e);
  }
}

void cuda_lane::run(accelerator::stream s, const std::function<void()>& work) {
  const c10::cuda::CUDAStreamGuard guard{stream_of(s)};
  work();
}

result<std::unique_ptr<accelerator::event>> cuda_lane::make_event(bool timed) {
  const c10::cuda::CUDAGuard guard{compute_.device()};
  return cuda_event::make(index(), timed);
}

status cuda_lane::record(accelerator::event& e, accelerator::stream s) {
  return checked("cudaEventRecord", index(), cudaEventRecord(handle_of(e), stream_of(s).stream()));
}

result<double> cuda_lane::milliseconds_between(accelerator::event& from, accelerator::event& to) {
  float ms = 0;
  if (auto ok = checked("cudaEventElapsedTime", index(),
                        cudaEventElapsedTime(&ms, handle_of(from), handle_of(to)));
      !ok)
    return ok.failure();
  return double{ms};
}

status cuda_lane::delay(std::chrono::nanoseconds time) {
  try {
    const c10::cuda::CUDAStreamGuard guard{compute_};
    // Kilohertz times nanoseconds, converted to cycles.
    at::cuda::sleep(static_cast<std::int64_t>(static_cast<double>(clock_khz_) * 1e-6 *
                                              static_cast<double>(time.count())));
    return success();
  } catch (const c10::Error& e) {
    return failure_of(e);
  }
}

void cuda_lane::claim(const at::Tensor& t) {
  c10::cuda::CUDACachingAllocator::recordStream(t.storage().data_ptr(), compute_);
}

status cuda_lane::copy_out(const at::Tensor& from, std::byte* to) {
  RRFP_CHECK(from.is_contiguous() && from.device() == device(),
             "copy_out() needs a contiguous tensor of this device");
  return checked("cudaMemcpyAsync to the host", index(),
                 cudaMemcpyAsync(to, from.const_data_ptr(), from.nbytes(), cudaMemcpyDeviceToHost,
                                 copy_.stream()));
}

result<at::Tensor> cuda_lane::copy_in(const at::Tensor& from) {
  RRFP_CHECK(from.is_contiguous(), "copy_in() needs a contiguous tensor");
  try {
    const c10::cuda::CUDAStreamGuard guard{copy_};
    auto to = at::empty(from.sizes(), from.options().device(device()).pinned_memory(false));
    // Before the copy is enqueued: after that, nothing but the copy may fail.
    claim(to);
    if (from.nbytes() > 0) {
      auto* const data = to.mutable_data_ptr();
      if (from.is_cpu()) {
        if (auto ok = checked("cudaMemcpyAsync from the host", index(),
                              cudaMemcpyAsync(data, from.const_data_ptr(), from.nbytes(),
                                              cudaMemcpyHostToDevice, copy_.stream()));
            !ok)
          return ok.failure();
      } else {
        const auto there = from.device().index();
        // The query enables peer access, where available; otherwise the copy is staged.
        static_cast<void>(at::cuda::get_p2p_access(compute_.device_index(), there));
        if (auto ok = checked("cudaMemcpyPeerAsync", index(),
                              cudaMemcpyPeerAsync(data, index(), from.const_data_ptr(), there,
                                                  from.nbytes(), copy_.stream()));
            !ok)
          return ok.failure();
      }
    }
    return to;
  } catch (const c10::Error& e) {
    return failure_of(e);
  }
}

result<at::Tensor> cuda_lane::make_receive_buffer(at::IntArrayRef shape, at::ScalarType type) {
  try {
    // Other allocators reuse memory in stream order, but writers from outside are in no stream.
    if (c10::cuda::CUDACachingAllocator::name() != "native")
      return error{
          "PYTORCH_CUDA_ALLOC_CONF selects an allocator that cannot provide receive buffers"};
    const c10::cuda::CUDAStreamGuard guard{receive_buffers_};
    auto buffer = at::empty(shape, at::TensorOptions{type}.device(device()));
    claim(buffer);
    return buffer;
  } catch (const c10::Error& e) {
    return failure_of(e);
  }
}

compute::memory_counts cuda_lane::memory() const {
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(compute_.device_index());
  const auto& allocated = stats.allocated_bytes[all];
  return {allocated.current, allocated.peak, stats.reserved_bytes[all].current};
}

}  // namespace rrfp::cuda
