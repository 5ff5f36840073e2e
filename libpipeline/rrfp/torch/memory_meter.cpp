#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <rrfp/torch/memory_meter.hpp>

namespace rrfp::compute {

namespace {

/// While set, libtorch does not report allocations and frees of this thread.
thread_local bool is_muted = false;

}  // namespace

using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

/// A block counts while its address is in `blocks_`. libtorch reports memory to a thread's profiler
/// and takes whatever it reports to for one, so this is a profiler that is disabled.
class memory_meter::ledger final : public ProfilerStateBase {
 public:
  ledger() : ProfilerStateBase(ProfilerConfig{ProfilerState::Disabled}) {}

  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }

  void reportMemoryUsage(void* ptr, std::int64_t bytes, std::size_t /*total_allocated*/,
                         std::size_t /*total_reserved*/, c10::Device /*device*/) override {
    if (bytes < 0) {
      remove(ptr);
      return;
    }
    const std::lock_guard lock(mutex_);
    // An allocation may reuse the address of a block that another thread freed after hand_out().
    if (const auto [it, is_new] = blocks_.try_emplace(ptr, bytes); !is_new) {
      add(-it->second);
      it->second = bytes;
    }
    add(bytes);
  }

  bool memoryProfilingEnabled() const override { return !is_muted; }

  void remove(void* ptr) {
    const std::lock_guard lock(mutex_);
    const auto it = blocks_.find(ptr);
    if (it == blocks_.end()) return;
    add(-it->second);
    blocks_.erase(it);
  }

  void adjust(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    add(bytes);
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = current_.load();
  }

  std::int64_t current() const { return current_; }
  std::int64_t peak() const { return peak_; }

 private:
  void add(std::int64_t bytes) {
    current_ += bytes;
    if (current_ > peak_) peak_ = current_.load();
  }

  std::mutex mutex_;
  std::unordered_map<void*, std::int64_t> blocks_;
  std::atomic<std::int64_t> current_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

memory_meter::memory_meter() : ledger_(std::make_shared<ledger>()) {}

std::int64_t memory_meter::current() const { return ledger_->current(); }
std::int64_t memory_meter::peak() const { return ledger_->peak(); }
void memory_meter::reset_peak() { ledger_->reset_peak(); }

at::Tensor memory_meter::take_in(at::Tensor tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (bytes == 0) return tensor;
  ledger_->adjust(bytes);
  void* const data = tensor.data_ptr();
  const auto sizes = tensor.sizes().vec();
  const auto strides = tensor.strides().vec();
  const auto options = tensor.options();
  return at::from_blob(
      data, sizes, strides,
      [ledger = ledger_, bytes, held = std::move(tensor)](void*) mutable {
        ledger->adjust(-bytes);
        drop(std::move(held));
      },
      options);
}

void memory_meter::hand_out(const at::Tensor& tensor) {
  ledger_->remove(tensor.storage().data_ptr().get_context());
}

void memory_meter::drop(at::Tensor tensor) {
  const bool was_muted = std::exchange(is_muted, true);
  tensor.reset();
  is_muted = was_muted;
}

memory_meter::scope::scope(const memory_meter& meter)
    : guard_(c10::DebugInfoKind::PROFILER_STATE, meter.ledger_) {}

}  // namespace rrfp::compute
