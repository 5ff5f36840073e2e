#include "state_bytes.hpp"

#include <algorithm>
#include <cstring>

#include <rrfp/base/codec.hpp>
#include <rrfp/safetensors/dtype.hpp>

namespace rrfp {

auto fields(auto f, shard& x) { return f(x.whole, x.dimension, x.blocks, x.offset, x.length); }

}  // namespace rrfp

namespace rrfp::actors {

namespace {

/// The alignment of the data of each tensor, which suits any element type.
constexpr std::int64_t alignment = 64;
/// A thread of low priority may take its time for a part.
constexpr std::size_t part_bytes = 256 << 10;

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

}  // namespace

state_copy::state_copy(std::vector<compute::named_buffer> tensors,
                       const std::function<tensor_buffer(std::int64_t)>& make_room)
    : tensors_(std::move(tensors)) {
  const auto header = header_of(tensors_);
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  const auto prefix = static_cast<std::int64_t>(sizeof header_bytes);
  auto total = aligned(prefix + header_bytes);
  for (const auto& t : tensors_)
    total = aligned(total + static_cast<std::int64_t>(t.value.bytes()));
  bytes_ = make_room(total);
  auto* const begin = bytes_.content().data();
  std::memcpy(begin, &header_bytes, sizeof header_bytes);
  std::memcpy(begin + prefix, header.data(), header.size());
  auto at = prefix + header_bytes;
  const auto pad = [&] {
    std::memset(begin + at, 0, static_cast<std::size_t>(aligned(at) - at));
    at = aligned(at);
  };
  pad();
  for (const auto& t : tensors_) {
    auto rest = t.value.content();
    while (!rest.empty()) {
      const auto bytes = std::min(rest.size(), part_bytes);
      parts_.push_back({rest.data(), begin + at, bytes});
      rest = rest.subspan(bytes);
      at += static_cast<std::int64_t>(bytes);
    }
    pad();
  }
}

void state_copy::finish() {
  for (std::size_t i; (i = begun_++) < parts_.size();) {
    std::memcpy(parts_[i].to, parts_[i].from, parts_[i].bytes);
    if (++ended_ == parts_.size()) ended_.notify_all();
  }
  for (auto n = ended_.load(); n < parts_.size(); n = ended_.load()) ended_.wait(n);
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
    const auto data = safetensors::byte_size(e.type, e.shape);
    if (item_bytes(e.type) == 0 || !data || at > size ||
        *data > static_cast<std::uint64_t>(size - at))
      return invalid;
    auto view = bytes;
    view.data = begin + at;
    view.type = e.type;
    view.sizes = e.shape;
    tensors.push_back({e.name, std::move(view), e.is_part ? std::optional{e.part} : std::nullopt});
    at = aligned(at + static_cast<std::int64_t>(*data));
  }
  return tensors;
}

}  // namespace rrfp::actors
