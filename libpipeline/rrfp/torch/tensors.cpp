#include <rrfp/torch/tensors.hpp>

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include <rrfp/base/check.hpp>

namespace rrfp::compute {

namespace {

constexpr std::pair<dtype, at::ScalarType> types[] = {
    {dtype::uint8, at::kByte},    {dtype::int8, at::kChar},      {dtype::int16, at::kShort},
    {dtype::int32, at::kInt},     {dtype::int64, at::kLong},     {dtype::float16, at::kHalf},
    {dtype::float32, at::kFloat}, {dtype::float64, at::kDouble}, {dtype::bfloat16, at::kBFloat16},
    {dtype::boolean, at::kBool},  {dtype::uint16, at::kUInt16},  {dtype::uint32, at::kUInt32},
    {dtype::uint64, at::kUInt64},
};

class tensor_owner final : public buffer_owner {
 public:
  explicit tensor_owner(at::Tensor t) : tensor(std::move(t)) {}

  const at::Tensor tensor;
};

/// A range of the logical dimension, and its offset in the shard.
struct range {
  std::int64_t begin, end, local;
};

std::vector<range> ranges_of(const shard& s) {
  const auto block = s.whole[static_cast<std::size_t>(s.dimension)] / s.blocks;
  std::vector<range> all;
  for (std::int64_t b = 0; b < s.blocks; ++b) {
    const auto begin = b * block + s.offset;
    all.push_back({begin, begin + s.length, b * s.length});
  }
  return all;
}

/// Calls `reduce` with `t` in the memory in which the group sums.
template <class Reduce>
void all_reduce(rank_group& group, at::Tensor& t, Reduce reduce) {
  const bool is_there = t.is_cpu() != group.on_device();
  if (!is_there && group.on_device())
    throw group_error("a collective on a device expects a tensor in device memory");
  const auto flat = is_there ? t.contiguous() : t.cpu().contiguous();
  reduce(to_buffer(flat));
  if (!flat.is_same(t)) t.copy_(flat);
}

}  // namespace

dtype dtype_of(at::ScalarType type) {
  for (const auto& [known, scalar] : types)
    if (scalar == type) return known;
  return dtype::other;
}

std::optional<at::ScalarType> scalar_type_of(dtype type) {
  for (const auto& [known, scalar] : types)
    if (known == type) return scalar;
  return std::nullopt;
}

tensor_buffer to_buffer(at::Tensor t) {
  tensor_buffer b;
  if (!t.defined()) return b;
  b.type = dtype_of(t.scalar_type());
  b.on_host = t.is_cpu();
  // Sparse and quantized tensors have no plain memory.
  b.contiguous = t.layout() == at::kStrided && !t.is_quantized() && t.is_contiguous();
  b.sizes = t.sizes().vec();
  // Tensors of other subclasses may have no storage at all.
  b.data = t.has_storage() ? t.mutable_data_ptr() : nullptr;
  b.owner = std::make_shared<const tensor_owner>(std::move(t));
  return b;
}

at::Tensor to_tensor(const tensor_buffer& b) {
  if (!b.defined()) return {};
  if (const auto* own = dynamic_cast<const tensor_owner*>(b.owner.get())) return own->tensor;
  const auto type = scalar_type_of(b.type);
  TORCH_CHECK(type && b.on_host && b.contiguous,
              "expected a contiguous buffer on the host, of a type of libtorch");
  const auto options = at::TensorOptions{}.dtype(*type);
  if (b.elements() == 0) return at::empty(b.sizes, options);
  return at::from_blob(
      b.data, b.sizes, [owner = b.owner](void*) {}, options);
}

at::Tensor host_copy_of(const at::Tensor& t) {
  auto copy = at::empty(t.sizes(), t.options().device(at::kCPU).requires_grad(false),
                        at::MemoryFormat::Contiguous);
  copy.copy_(t);
  return copy;
}

named_buffer to_buffer(named_tensor t) {
  return {std::move(t.name), to_buffer(std::move(t.value)), std::move(t.part), std::move(t.stored)};
}

named_tensor to_tensor(const named_buffer& b) {
  return {b.name, to_tensor(b.value), b.part, b.stored};
}

std::vector<named_tensor> to_tensors(std::span<const named_buffer> all) {
  std::vector<named_tensor> tensors;
  for (const auto& b : all) tensors.push_back(to_tensor(b));
  return tensors;
}

void all_reduce_sum(rank_group& group, at::Tensor& t) {
  all_reduce(group, t, [&](const tensor_buffer& b) { group.all_reduce_sum(b); });
}

void all_reduce_max(rank_group& group, at::Tensor& t) {
  all_reduce(group, t, [&](const tensor_buffer& b) { group.all_reduce_max(b); });
}

at::Tensor slice_of(const at::Tensor& whole, const shard& s) {
  std::vector<at::Tensor> parts;
  for (const auto& r : ranges_of(s)) {
    parts.push_back(whole.narrow(s.dimension, r.begin, r.end - r.begin));
  }
  return at::cat(parts, s.dimension).contiguous();
}

std::int64_t copy_overlap(const at::Tensor& from, const shard& from_shard, at::Tensor& to,
                          const shard& to_shard) {
  RRFP_CHECK(from_shard.whole == to_shard.whole && from_shard.dimension == to_shard.dimension,
             "shards of the same parameter");
  std::int64_t copied = 0;
  for (const auto& t : ranges_of(to_shard)) {
    for (const auto& f : ranges_of(from_shard)) {
      const auto begin = std::max(t.begin, f.begin);
      const auto length = std::min(t.end, f.end) - begin;
      if (length <= 0) continue;
      auto part = to.narrow(to_shard.dimension, t.local + begin - t.begin, length);
      part.copy_(from.narrow(from_shard.dimension, f.local + begin - f.begin, length));
      copied += part.numel();
    }
  }
  return copied;
}

}  // namespace rrfp::compute
