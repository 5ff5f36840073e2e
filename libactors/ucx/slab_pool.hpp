/// Memory that messages arrive in. A slab is 64-byte-aligned, has a power of two of bytes, and
/// returns to its pool when its last user lets go, from any thread, also after the transport that
/// took it is gone: each slab in use keeps the pool alive. Reuse matters because the first touch of
/// fresh memory costs more than the copy into it.
///
/// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <rrfp/actors/ucx_transport.hpp>

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
  /// Gives up the ownership: the holder of the pointer calls give_back.
  std::byte* release();
  /// `data` is what release() gave, or null. Fits as deleter of a tensor's storage.
  static void give_back(void* data);

 private:
  friend class slab_pool;
  explicit slab(std::byte* data) : data_(data) {}

  std::byte* data_ = nullptr;
};

class slab_pool : public std::enable_shared_from_this<slab_pool> {
 public:
  struct counts {
    std::uint64_t slabs_in_use = 0;
    std::uint64_t bytes_in_use = 0;  ///< of the slabs, hence up to twice what was asked for
    std::uint64_t bytes_cached = 0;
  };

  /// Keeps at most `cached_bytes_max` of unused slabs. Takes them from `memory`, which must be of
  /// use as long as a slab is around.
  static std::shared_ptr<slab_pool> make(std::uint64_t cached_bytes_max, slab_memory memory = {});
  slab_pool(const slab_pool&) = delete;
  slab_pool& operator=(const slab_pool&) = delete;
  ~slab_pool();

  /// At least `bytes`, not initialised; an empty slab when the system has no such memory.
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
