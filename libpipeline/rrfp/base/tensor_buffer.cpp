#include <rrfp/base/tensor_buffer.hpp>

#include <algorithm>
#include <new>
#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp {

namespace {

constexpr std::align_val_t alignment{64};

class host_memory final : public buffer_owner {
 public:
  explicit host_memory(std::size_t bytes) : data_(::operator new(bytes, alignment)) {}
  ~host_memory() override { ::operator delete(data_, alignment); }

  void* data() const { return data_; }

 private:
  void* const data_;
};

}  // namespace

std::size_t item_bytes(dtype type) {
  switch (type) {
    case dtype::uint8:
    case dtype::int8:
    case dtype::boolean: return 1;
    case dtype::int16:
    case dtype::uint16:
    case dtype::float16:
    case dtype::bfloat16: return 2;
    case dtype::int32:
    case dtype::uint32:
    case dtype::float32: return 4;
    case dtype::int64:
    case dtype::uint64:
    case dtype::float64: return 8;
    case dtype::other: break;
  }
  return 0;
}

std::int64_t tensor_buffer::elements() const {
  std::int64_t n = 1;
  for (const auto size : sizes) n *= size;
  return n;
}

std::span<const std::byte> tensor_buffer::content() const {
  RRFP_CHECK(on_host && contiguous, "a contiguous tensor in host memory");
  return {static_cast<const std::byte*>(data), bytes()};
}

std::span<std::byte> tensor_buffer::content() {
  const auto all = std::as_const(*this).content();
  return {static_cast<std::byte*>(data), all.size()};
}

tensor_buffer make_host_buffer(dtype type, std::vector<std::int64_t> sizes) {
  tensor_buffer b;
  b.type = type;
  b.sizes = std::move(sizes);
  const auto memory = std::make_shared<const host_memory>(b.bytes());
  b.data = memory->data();
  b.owner = memory;
  return b;
}

tensor_buffer copy_of(const tensor_buffer& from) {
  auto copy = make_host_buffer(from.type, from.sizes);
  std::ranges::copy(from.content(), copy.content().begin());
  return copy;
}

}  // namespace rrfp
