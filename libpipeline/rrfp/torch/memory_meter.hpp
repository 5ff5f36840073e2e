/// Counts the bytes of tensors that a compute thread holds, on each allocation and free of
/// libtorch.
///
/// A block counts if the metered thread allocates it while a scope is active, until that thread
/// frees it. Tensors from or to other threads must be registered: take_in() counts a tensor until
/// its last reference is released, hand_out() stops counting one. The meter uses the PROFILER_STATE
/// slot of libtorch's thread-local debug information, so torch's memory profiler cannot run in the
/// same thread.
///
/// Any thread may call current() and peak(); only the metered thread may call the other functions.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace rrfp::compute {

class memory_meter {
 public:
  memory_meter();

  /// Bytes held now, and the maximum since reset_peak().
  std::int64_t current() const;
  std::int64_t peak() const;
  void reset_peak();

  /// An alias of `tensor` (same memory, CPU) whose bytes count until its last reference is
  /// released.
  at::Tensor take_in(at::Tensor tensor);
  /// Stops counting `tensor`: it now belongs to another thread.
  void hand_out(const at::Tensor& tensor);
  /// Releases a reference to memory of another thread without libtorch's warning about freeing
  /// memory whose allocation it did not see.
  static void drop(at::Tensor tensor);

  /// Meters the current thread while the object exists.
  class scope {
   public:
    explicit scope(const memory_meter& meter);

   private:
    c10::DebugInfoGuard guard_;
  };

 private:
  class ledger;
  std::shared_ptr<ledger> ledger_;
};

}  // namespace rrfp::compute
