/// Memory for received messages. A slab is aligned to 64 bytes, its size is a power of two, and its
/// last user returns it to the pool from any thread. A slab in use keeps the pool alive, also after
/// the transport is destroyed. Reuse matters because the first touch of new memory costs more than
/// the copy into it.
///
/// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/transport/ucx_transport.hpp>

namespace rrfp::actors::ucx {

class slab_pool;

/// A slab in use; empty when default-constructed or moved from.
class slab {
 public:
  slab() = default;
  slab(slab&& other) noexcept : data_(other.release()) {}
  slab& operator=(slab&& other) noexcept;
  ~slab() { give_back(data_); }

  std::byte* data() const { return data_; }

 private:
  friend class slab_pool;
  std::byte* release() { return std::exchange(data_, nullptr); }
  static void give_back(std::byte* data);
  explicit slab(std::byte* data) : data_(data) {}

  std::byte* data_ = nullptr;
};

/// A contiguous tensor in a slab, which is large enough.
tensor_buffer to_buffer(slab s, dtype type, std::vector<std::int64_t> sizes);

class slab_pool : public std::enable_shared_from_this<slab_pool> {
 public:
  struct counts {
    std::uint64_t slabs_in_use = 0;
    std::uint64_t bytes_in_use = 0;  ///< size of the slabs, up to twice the requested size
    std::uint64_t bytes_cached = 0;
  };

  /// Keeps at most `cached_bytes_max` of unused slabs. Allocates from `memory`, which must stay
  /// usable as long as any slab exists.
  static std::shared_ptr<slab_pool> make(std::uint64_t cached_bytes_max, slab_memory memory = {});
  slab_pool(const slab_pool&) = delete;
  slab_pool& operator=(const slab_pool&) = delete;
  ~slab_pool();

  /// At least `bytes`, uninitialised; an empty slab if the allocation fails.
  slab take(std::size_t bytes);
  counts count() const;

 private:
  friend class slab;
  static constexpr std::size_t smallest_bits = 8;
  static constexpr std::size_t size_classes = 40;

  slab_pool(std::uint64_t cached_bytes_max, slab_memory memory);
  void keep_or_free(std::byte* block, std::uint8_t size_class);

  const std::uint64_t cached_bytes_max_;
  const slab_memory memory_;
  mutable std::mutex mutex_;
  std::array<std::vector<std::byte*>, size_classes> unused_;
  counts counts_;
};

}  // namespace rrfp::actors::ucx
