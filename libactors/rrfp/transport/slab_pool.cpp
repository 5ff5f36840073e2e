#include "slab_pool.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::actors::ucx {

namespace {

/// Stored in the 64 bytes before a slab's data, so that the data pointer suffices to return the
/// slab.
struct slab_head {
  std::shared_ptr<slab_pool> pool;
  std::uint8_t size_class;
};

constexpr std::size_t head_bytes = 64;
static_assert(sizeof(slab_head) <= head_bytes);

class slab_owner final : public buffer_owner {
 public:
  explicit slab_owner(slab s) : slab_(std::move(s)) {}

 private:
  const slab slab_;
};

}  // namespace

tensor_buffer to_buffer(slab s, dtype type, std::vector<std::int64_t> sizes) {
  tensor_buffer b;
  b.data = s.data();
  b.type = type;
  b.sizes = std::move(sizes);
  b.owner = std::make_shared<const slab_owner>(std::move(s));
  return b;
}

slab& slab::operator=(slab&& other) noexcept {
  if (this != &other) give_back(std::exchange(data_, other.release()));
  return *this;
}

void slab::give_back(std::byte* data) {
  if (data == nullptr) return;
  auto* const block = data - head_bytes;
  auto* const head = std::launder(reinterpret_cast<slab_head*>(block));
  const auto pool = std::move(head->pool);
  const auto size_class = head->size_class;
  head->~slab_head();
  pool->keep_or_free(block, size_class);
}

std::shared_ptr<slab_pool> slab_pool::make(std::uint64_t cached_bytes_max, slab_memory memory) {
  if (!memory.allocate)
    memory = {[](std::size_t bytes) { return std::aligned_alloc(head_bytes, bytes); },
              [](void* block) { std::free(block); }};
  return std::shared_ptr<slab_pool>(new slab_pool{cached_bytes_max, std::move(memory)});
}

slab_pool::slab_pool(std::uint64_t cached_bytes_max, slab_memory memory)
    : cached_bytes_max_(cached_bytes_max), memory_(std::move(memory)) {}

slab_pool::~slab_pool() {
  for (const auto& blocks : unused_)
    for (auto* const block : blocks) memory_.free(block);
}

slab slab_pool::take(std::size_t bytes) {
  const auto bits =
      std::max<std::size_t>(std::bit_width(std::max<std::size_t>(bytes, 1) - 1), smallest_bits);
  const auto size_class = bits - smallest_bits;
  RRFP_CHECK(size_class < size_classes, "a slab must have less than 2^48 bytes");
  const auto size = std::size_t{1} << bits;
  std::byte* block = nullptr;
  {
    const std::lock_guard lock{mutex_};
    if (auto& blocks = unused_[size_class]; !blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
      counts_.bytes_cached -= size;
    }
    ++counts_.slabs_in_use;
    counts_.bytes_in_use += size;
  }
  if (block == nullptr) block = static_cast<std::byte*>(memory_.allocate(head_bytes + size));
  if (block == nullptr) {
    const std::lock_guard lock{mutex_};
    --counts_.slabs_in_use;
    counts_.bytes_in_use -= size;
    return {};
  }
  new (block) slab_head{shared_from_this(), static_cast<std::uint8_t>(size_class)};
  return slab{block + head_bytes};
}

void slab_pool::keep_or_free(std::byte* block, std::uint8_t size_class) {
  const auto size = std::uint64_t{1} << (size_class + smallest_bits);
  {
    const std::lock_guard lock{mutex_};
    --counts_.slabs_in_use;
    counts_.bytes_in_use -= size;
    if (counts_.bytes_cached + size <= cached_bytes_max_) {
      unused_[size_class].push_back(block);
      counts_.bytes_cached += size;
      return;
    }
  }
  memory_.free(block);
}

slab_pool::counts slab_pool::count() const {
  const std::lock_guard lock{mutex_};
  return counts_;
}

}  // namespace rrfp::actors::ucx
