/// Tensors of libtorch as buffers, and back.
#include <numeric>

#include <rrfp/torch/tensors.hpp>

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace rrfp::compute {
namespace {

TEST_CASE("a tensor that becomes a buffer is the same tensor again") {
  const auto t = at::arange(12, at::kFloat).view({3, 4});
  for (const auto& tensor : {t, t.t(), at::empty({0, 3}), at::ones({2}, at::kComplexFloat),
                             at::scalar_tensor(7, at::kLong)}) {
    const auto b = to_buffer(tensor);
    CHECK(b.on_host);
    CHECK(b.contiguous == tensor.is_contiguous());
    CHECK(b.sizes == tensor.sizes().vec());
    CHECK(b.data == tensor.data_ptr());
    CHECK(to_tensor(b).is_same(tensor));
  }
  CHECK_FALSE(to_buffer(at::Tensor{}).defined());
  CHECK_FALSE(to_tensor(tensor_buffer{}).defined());
}

TEST_CASE("a host copy is contiguous, in memory of its own, and needs no gradient") {
  const auto t = at::arange(6.0).reshape({2, 3}).requires_grad_();
  for (const auto& tensor : {t, t.t(), t.expand({4, 2, 3})}) {
    const auto copy = host_copy_of(tensor.detach());
    CHECK(copy.equal(tensor));
    CHECK(copy.is_contiguous());
    CHECK(copy.data_ptr() != tensor.data_ptr());
    CHECK_FALSE(copy.requires_grad());
  }
}

TEST_CASE("a type that buffers do not know stays in its process") {
  const auto b = to_buffer(at::ones({2}, at::kComplexFloat));
  CHECK(b.type == dtype::other);
  CHECK(item_bytes(b.type) == 0);
}

TEST_CASE("a buffer of another framework becomes a tensor that shares and keeps its memory") {
  auto b = make_host_buffer(dtype::float32, {2, 3});
  const std::span numbers{static_cast<float*>(b.data), 6};
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  CHECK(reinterpret_cast<std::uintptr_t>(b.data) % 64 == 0);
  auto t = to_tensor(b);
  CHECK(t.data_ptr() == b.data);
  const std::weak_ptr<const buffer_owner> memory = b.owner;
  b = {};
  CHECK(t.equal(at::arange(6, at::kFloat).view({2, 3})));
  t.reset();
  CHECK(memory.expired());
  CHECK(to_tensor(make_host_buffer(dtype::bfloat16, {0, 5})).sizes() == at::IntArrayRef{0, 5});
}

TEST_CASE("every type of a buffer has one of libtorch, of the same size") {
  for (int code = 1; code <= 13; ++code) {
    const auto type = static_cast<dtype>(code);
    const auto scalar = scalar_type_of(type);
    REQUIRE(scalar);
    CHECK(dtype_of(*scalar) == type);
    CHECK(at::elementSize(*scalar) == item_bytes(type));
  }
  CHECK_FALSE(scalar_type_of(dtype::other));
}

TEST_CASE("a copy of a buffer has the same bytes in other memory") {
  const auto b = to_buffer(at::arange(9, at::kShort));
  const auto copy = copy_of(b);
  CHECK(copy.data != b.data);
  CHECK(to_tensor(copy).equal(to_tensor(b)));
}

}  // namespace
}  // namespace rrfp::compute
