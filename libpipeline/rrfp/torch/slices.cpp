#include <algorithm>

#include <ATen/ATen.h>

#include <rrfp/base/check.hpp>
#include <rrfp/torch/tensors.hpp>

namespace rrfp::compute {

namespace {

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

}  // namespace

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
