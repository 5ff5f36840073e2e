/// A fake of the CUDA runtime functions that libtorch and rrfp call, over host memory and threads.
/// Invalid calls are refused as CUDA does, or end the process where CUDA would silently do
/// something else. Kernels do not run: operators.cpp runs their operators instead, and launching a
/// kernel is a fault.
///
/// Environment variables: RRFP_HOST_CUDA_DEVICES (default 1), RRFP_HOST_CUDA_BYTES per device
/// (default 1 GiB), and RRFP_HOST_CUDA_REPORT, a file that gets a line, the process and the device,
/// for each context.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "streams.hpp"

namespace rrfp::host_cuda {

namespace {

std::size_t setting(const char* name, std::size_t otherwise) {
  const auto* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

int device_count() {
  static const auto count = static_cast<int>(setting("RRFP_HOST_CUDA_DEVICES", 1));
  return count;
}

std::size_t device_bytes() {
  static const auto bytes = setting("RRFP_HOST_CUDA_BYTES", std::size_t{1} << 30);
  return bytes;
}

constexpr std::size_t page = 4096;

enum class kind { device, pinned };

struct block {
  std::size_t bytes;
  kind what;
  int device;
};

/// All memory that the fake has allocated.
class memory_table {
 public:
  void* allocate(std::size_t bytes, kind what, int device) {
    const std::lock_guard lock{mutex_};
    if (what == kind::device && taken_[device] + bytes > device_bytes()) return nullptr;
    void* made = nullptr;
    if (posix_memalign(&made, page, std::max<std::size_t>(bytes, 1)) != 0) return nullptr;
    // Reading memory before writing it gives NaN.
    std::memset(made, 0xff, bytes);
    blocks_[static_cast<std::byte*>(made)] = {bytes, what, device};
    if (what == kind::device) taken_[device] += bytes;
    return made;
  }
  bool free(void* memory, kind what) {
    const std::lock_guard lock{mutex_};
    const auto found = blocks_.find(static_cast<std::byte*>(memory));
    if (found == blocks_.end() || found->second.what != what) return false;
    if (what == kind::device) taken_[found->second.device] -= found->second.bytes;
    blocks_.erase(found);
    std::free(memory);
    return true;
  }
  /// The block that contains this range; with 0 bytes: none.
  block find(const void* memory, std::size_t bytes = 1) {
    const std::lock_guard lock{mutex_};
    const auto* const at = static_cast<const std::byte*>(memory);
    auto next = blocks_.upper_bound(const_cast<std::byte*>(at));
    if (next == blocks_.begin()) return {};
    --next;
    return at + bytes <= next->first + next->second.bytes ? next->second : block{};
  }
  std::size_t left(int device) {
    const std::lock_guard lock{mutex_};
    return device_bytes() - taken_[device];
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, block> blocks_;
  std::map<int, std::size_t> taken_;
};

memory_table& memory() {
  static auto* const all = new memory_table;
  return *all;
}

class stream_table {
 public:
  stream* make(int device) {
    const std::lock_guard lock{mutex_};
    auto* const made = new stream{device};
    all_.insert(made);
    return made;
  }
  stream& of(void* handle) {
    const auto value = reinterpret_cast<std::uintptr_t>(handle);
    const std::lock_guard lock{mutex_};
    if (value <= 2) {  // the default streams
      auto*& one = defaults_[current_device()];
      if (one == nullptr) all_.insert(one = new stream{current_device()});
      return *one;
    }
    auto* const found = static_cast<stream*>(handle);
    if (!all_.contains(found)) fault("a stream that does not exist");
    return *found;
  }
  std::vector<stream*> on(int device) {
    const std::lock_guard lock{mutex_};
    std::vector<stream*> found;
    for (auto* const s : all_)
      if (s->device() == device) found.push_back(s);
    return found;
  }

 private:
  std::mutex mutex_;
  std::set<stream*> all_;
  std::map<int, stream*> defaults_;
};

stream_table& streams() {
  static auto* const all = new stream_table;
  return *all;
}

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t answer(cudaError_t said) {
  if (said != cudaSuccess) last_error = said;
  return said;
}

/// Devices on which this process has a context: any runtime call creates one on the current device.
std::atomic<std::uint32_t> contexts{0};

void use_context() {
  const auto one = 1U << current;
  if ((contexts.fetch_or(one) & one) != 0) return;
  const auto* const file = std::getenv("RRFP_HOST_CUDA_REPORT");
  auto* const out = file == nullptr ? nullptr : std::fopen(file, "a");
  if (out == nullptr) return;
  std::fprintf(out, "%d %d\n", static_cast<int>(::getpid()), current);
  std::fclose(out);
}

class event_table {
 public:
  cudaEvent_t make(bool timed) {
    const std::lock_guard lock{mutex_};
    auto* const made = new event{current, timed, {}, {}};
    all_.insert(made);
    return reinterpret_cast<cudaEvent_t>(made);
  }
  event& of(cudaEvent_t handle) {
    const std::lock_guard lock{mutex_};
    auto* const found = reinterpret_cast<event*>(handle);
    if (!all_.contains(found)) fault("an event that does not exist");
    return *found;
  }
  void destroy(cudaEvent_t handle) {
    auto* const found = &of(handle);
    const std::lock_guard lock{mutex_};
    all_.erase(found);
    delete found;
  }

 private:
  std::mutex mutex_;
  std::set<event*> all_;
};

event_table& events() {
  static auto* const all = new event_table;
  return *all;
}

event& as_event(cudaEvent_t handle) { return events().of(handle); }

cudaError_t put_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind how, stream& s) {
  const auto source = memory().find(from, bytes);
  const auto target = memory().find(to, bytes);
  const auto on_device = [](const block& b) { return b.bytes > 0 && b.what == kind::device; };
  if (bytes > 0) {
    if ((how == cudaMemcpyHostToDevice || how == cudaMemcpyDeviceToDevice) && !on_device(target))
      return cudaErrorInvalidValue;
    if ((how == cudaMemcpyDeviceToHost || how == cudaMemcpyDeviceToDevice) && !on_device(source))
      return cudaErrorInvalidValue;
  }
  s.put([=] { std::memcpy(to, from, bytes); });
  // Unpinned memory is read or written before the call returns.
  if (source.bytes == 0 || target.bytes == 0) s.drain();
  return cudaSuccess;
}

}  // namespace

int current_device() { return current; }

stream& stream_of(void* handle) { return streams().of(handle); }

void drain_device(int device) {
  for (auto* const s : streams().on(device)) s->drain();
}

}  // namespace rrfp::host_cuda

using namespace rrfp::host_cuda;

extern "C" {

/// The devices on which this process has a context, one bit each.
std::uint32_t rrfp_host_cuda_contexts() { return contexts; }

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  take_over_operators();
  *count = device_count();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return answer(cudaErrorInvalidDevice);
  current = device;
  use_context();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device < 0 || device >= device_count()) return answer(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "memory of the host %d", device);
  p->totalGlobalMem = device_bytes();
  p->major = 9;
  p->multiProcessorCount = 8;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerBlock = 48 << 10;
  p->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int device) {
  if (device < 0 || device >= device_count()) return answer(cudaErrorInvalidDevice);
  // One cycle is one nanosecond.
  *value = what == cudaDevAttrClockRate ? 1'000'000 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  std::snprintf(id, static_cast<std::size_t>(size), "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  use_context();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  use_context();
  drain_device(current);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = nullptr;
  if (found != nullptr) *found = cudaDriverEntryPointSymbolNotFound;
  return answer(cudaErrorSymbolNotFound);
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

// ---- memory

cudaError_t cudaMalloc(void** made, std::size_t bytes) {
  use_context();
  *made = memory().allocate(bytes, kind::device, current);
  return *made == nullptr ? answer(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFree(void* block) {
  use_context();
  if (block == nullptr) return cudaSuccess;
  drain_device(memory().find(block).device);
  return memory().free(block, kind::device) ? cudaSuccess : answer(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  use_context();
  *free = memory().left(current);
  *total = device_bytes();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** made, std::size_t bytes, unsigned) {
  use_context();
  *made = memory().allocate(bytes, kind::pinned, current);
  return *made == nullptr ? answer(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFreeHost(void* block) {
  use_context();
  if (block == nullptr) return cudaSuccess;
  for (int d = 0; d < device_count(); ++d) drain_device(d);
  return memory().free(block, kind::pinned) ? cudaSuccess : answer(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* what, const void* memory_) {
  use_context();
  const auto found = memory().find(memory_);
  *what = {};
  if (found.bytes == 0) {
    what->type = cudaMemoryTypeUnregistered;
    what->device = -1;
    return cudaSuccess;
  }
  what->type = found.what == kind::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  what->device = found.device;
  what->devicePointer = const_cast<void*>(memory_);
  what->hostPointer = found.what == kind::device ? nullptr : const_cast<void*>(memory_);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind how,
                            cudaStream_t s) {
  use_context();
  return answer(put_copy(to, from, bytes, how, stream_of(s)));
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind how) {
  use_context();
  const auto said = put_copy(to, from, bytes, how, stream_of(nullptr));
  stream_of(nullptr).drain();
  return answer(said);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t s) {
  use_context();
  const auto is_on = [bytes](const void* at, int device) {
    const auto found = memory().find(at, bytes);
    return found.bytes > 0 && found.what == kind::device && found.device == device;
  };
  if (bytes > 0 && (!is_on(to, to_device) || !is_on(from, from_device)))
    return answer(cudaErrorInvalidValue);
  return answer(put_copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(s)));
}

cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t s) {
  use_context();
  stream_of(s).put([=] { std::memset(at, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  return cudaMemsetAsync(at, value, bytes, nullptr);
}

// ---- streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int) {
  use_context();
  if (flags != cudaStreamNonBlocking) fault("only non-blocking streams are supported");
  *made = reinterpret_cast<cudaStream_t>(streams().make(current));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
  return cudaStreamCreateWithPriority(made, flags, 0);
}

cudaError_t cudaStreamQuery(cudaStream_t s) {
  use_context();
  return stream_of(s).is_idle() ? cudaSuccess : answer(cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  use_context();
  stream_of(s).drain();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  use_context();
  if (const auto last = as_event(e).get()) stream_of(s).put([last] { last->wait(); });
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t* count) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned flags) {
  use_context();
  *made = events().make((flags & cudaEventDisableTiming) == 0);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* made) {
  return cudaEventCreateWithFlags(made, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
  use_context();
  events().destroy(e);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t s) {
  use_context();
  auto& e = as_event(handle);
  auto& in = stream_of(s);
  if (e.device != in.device()) return answer(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock{e.mutex};
  e.last = in.put_mark();
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
  return cudaEventRecord(e, s);
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
  use_context();
  const auto last = as_event(e).get();
  return last == nullptr || last->is_done() ? cudaSuccess : answer(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  use_context();
  if (const auto last = as_event(e).get()) last->wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  use_context();
  const auto a = as_event(from).get();
  const auto b = as_event(to).get();
  if (a == nullptr || b == nullptr || !as_event(from).timed || !as_event(to).timed)
    return answer(cudaErrorInvalidResourceHandle);
  if (!a->is_done() || !b->is_done()) return answer(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>{b->time() - a->time()}.count();
  return cudaSuccess;
}

// ---- kernels: registered, not run

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) {
  fault("a kernel was launched: operators.cpp does not run its operator");
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  fault("a kernel was launched: operators.cpp does not run its operator");
}

}  // extern "C"
