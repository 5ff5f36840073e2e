#include "state_bytes.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <rrfp/base/codec.hpp>

namespace rrfp::compute {

auto fields(auto f, shard& x) { return f(x.whole, x.dimension, x.blocks, x.offset, x.length); }

}  // namespace rrfp::compute

namespace rrfp::actors {

namespace {

/// The alignment of the data of each tensor, which suits any element type.
constexpr std::int64_t alignment = 64;

std::int64_t aligned(std::int64_t at) { return (at + alignment - 1) / alignment * alignment; }

struct entry {
  std::string name;
  dtype type = dtype::float32;
  std::vector<std::int64_t> shape;
  bool is_part = false;
  compute::shard part;
};

auto fields(auto f, entry& x) { return f(x.name, x.type, x.shape, x.is_part, x.part); }

std::string header_of(std::span<const compute::named_buffer> tensors) {
  std::vector<entry> entries;
  for (const auto& t : tensors)
    entries.push_back({t.name, t.value.type, t.value.sizes, t.part.has_value(),
                       t.part.value_or(compute::shard{})});
  encoder header;
  header(entries);
  return header.take();
}

/// The bytes of a tensor with these elements; nothing: there can be none.
std::optional<std::int64_t> size_of(const entry& e) {
  if (item_bytes(e.type) == 0) return std::nullopt;
  // Strides must not overflow, even those of a tensor without elements.
  auto most = static_cast<std::int64_t>(item_bytes(e.type));
  bool is_empty = false;
  for (const auto n : e.shape) {
    if (n < 0 || __builtin_mul_overflow(most, std::max<std::int64_t>(n, 1), &most))
      return std::nullopt;
    is_empty |= n == 0;
  }
  return is_empty ? 0 : most;
}

}  // namespace

tensor_buffer bytes_of_state(std::span<const compute::named_buffer> tensors,
                             const std::function<tensor_buffer(std::int64_t)>& make_room) {
  const auto header = header_of(tensors);
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  const auto prefix = static_cast<std::int64_t>(sizeof header_bytes);
  auto total = aligned(prefix + header_bytes);
  for (const auto& t : tensors) total = aligned(total + static_cast<std::int64_t>(t.value.bytes()));
  auto made = make_room(total);
  auto* const begin = made.content().data();
  // Padding is zero, so that equal states have equal bytes.
  std::int64_t at = 0;
  const auto append = [&](const void* data, std::int64_t bytes, bool pads) {
    if (bytes > 0) std::memcpy(begin + at, data, static_cast<std::size_t>(bytes));
    at += bytes;
    if (!pads) return;
    std::memset(begin + at, 0, static_cast<std::size_t>(aligned(at) - at));
    at = aligned(at);
  };
  append(&header_bytes, prefix, false);
  append(header.data(), header_bytes, true);
  for (const auto& t : tensors) {
    const auto bytes = t.value.content();
    append(bytes.data(), static_cast<std::int64_t>(bytes.size()), true);
  }
  return made;
}

result<std::vector<compute::named_buffer>> state_of_bytes(const tensor_buffer& bytes) {
  const error invalid{"the copy of a state is invalid", error_kind::failed};
  const auto size = static_cast<std::int64_t>(bytes.bytes());
  auto* const begin = static_cast<std::byte*>(bytes.data);
  std::int64_t header_bytes = 0;
  const auto prefix = static_cast<std::int64_t>(sizeof header_bytes);
  if (size < prefix) return invalid;
  std::memcpy(&header_bytes, begin, sizeof header_bytes);
  if (header_bytes < 0 || header_bytes > size - prefix) return invalid;
  decoder header{
      {reinterpret_cast<const char*>(begin) + prefix, static_cast<std::size_t>(header_bytes)}};
  std::vector<entry> entries;
  header(entries);
  if (!header.complete()) return invalid;
  std::vector<compute::named_buffer> tensors;
  auto at = aligned(prefix + header_bytes);
  for (const auto& e : entries) {
    const auto data = size_of(e);
    if (!data || at > size || *data > size - at) return invalid;
    auto view = bytes;
    view.data = begin + at;
    view.type = e.type;
    view.sizes = e.shape;
    tensors.push_back({e.name, std::move(view), e.is_part ? std::optional{e.part} : std::nullopt});
    at = aligned(at + *data);
  }
  return tensors;
}

}  // namespace rrfp::actors
