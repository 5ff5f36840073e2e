/// How many bytes of tensors a compute thread holds, counted where libtorch allocates and frees.
///
/// Only blocks that the metered thread allocated while metering count, until they are freed there.
/// Tensors that come from or go to other threads are told explicitly: take_in() counts an arriving
/// tensor until its last reference is gone, hand_out() stops counting one that leaves. Uses the
/// PROFILER_STATE place of libtorch's thread-local debug information: torch's own memory profiler
/// and the meter cannot watch the same thread at once.
///
/// current() and peak() may be read from any thread; the rest belongs to the metered one.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace rrfp::compute {

class memory_meter {
 public:
  memory_meter();

  /// Bytes held now, and at most since reset_peak().
  std::int64_t current() const;
  std::int64_t peak() const;
  void reset_peak();

  /// An alias of `tensor` (same memory, CPU) whose bytes count until its last reference is gone.
  at::Tensor take_in(at::Tensor tensor);
  /// The memory of `tensor` belongs to somebody else from now on.
  void hand_out(const at::Tensor& tensor);
  /// Lets go of a reference to memory of another thread. libtorch warns if it frees, while
  /// metering, what it has not seen allocated; here and in take_in() it does not.
  static void drop(at::Tensor tensor);

  /// Metering in this thread, as long as it lives.
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
