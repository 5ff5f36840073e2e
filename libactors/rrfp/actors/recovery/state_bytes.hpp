/// The state of a rank as bytes: the names, types, shapes and parts of its tensors, then their
/// data. Only the same version reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/rank_compute.hpp>

namespace rrfp::actors {

/// Copies contiguous tensors in host memory, in parts that any thread may copy.
/// Thread-safe.
class state_copy {
 public:
  /// The bytes go into `make_room(bytes)`.
  state_copy(std::vector<compute::named_buffer> tensors,
             const std::function<tensor_buffer(std::int64_t)>& make_room);

  /// Copies the parts that no thread has begun, and waits for those of other threads.
  void finish();
  /// After finish(). Equal states have equal bytes.
  const tensor_buffer& bytes() const { return bytes_; }

 private:
  struct part {
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };

  tensor_buffer bytes_;
  std::vector<compute::named_buffer> tensors_;
  std::vector<part> parts_;
  std::atomic<std::size_t> begun_ = 0;
  std::atomic<std::size_t> ended_ = 0;
};

/// Views of the bytes, which they keep. Error: these are not the bytes of a state.
result<std::vector<compute::named_buffer>> state_of_bytes(const tensor_buffer& bytes);

}  // namespace rrfp::actors
