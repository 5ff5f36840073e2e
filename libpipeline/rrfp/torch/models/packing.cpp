#include "packing.hpp"

#include <algorithm>

#include <ATen/ATen.h>

namespace rrfp::compute {

namespace {

/// [rows, kv_heads, width] -> [rows, heads, width]
at::Tensor repeated(const at::Tensor& t, std::int64_t heads) {
  const auto kv_heads = t.size(1);
  if (kv_heads == heads) return t;
  return t.unsqueeze(2)
      .expand({t.size(0), kv_heads, heads / kv_heads, t.size(2)})
      .reshape({t.size(0), heads, t.size(2)});
}

}  // namespace

packing::packing(std::span<const std::int64_t> lengths, at::Device device) {
  for (const auto length : lengths) {
    if (length == 0) continue;
    if (!groups_.empty() && groups_.back().length == length) {
      ++groups_.back().count;
    } else {
      groups_.push_back({rows_, 1, length});
    }
    rows_ += length;
    longest_ = std::max(longest_, length);
  }
  positions_ = at::empty({rows_}, at::kLong);
  auto* position = positions_.mutable_data_ptr<std::int64_t>();
  for (const auto length : lengths)
    for (std::int64_t i = 0; i < length; ++i) *position++ = i;
  // The copy from unpinned memory would wait for the stream.
  if (!device.is_cpu()) positions_ = positions_.pin_memory().to(device, /*non_blocking=*/true);
}

at::Tensor packing::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           bool causal) const {
  TORCH_CHECK(q.size(0) == rows_, "attention over ", q.size(0),
              " rows, but the sequences of the microbatch have ", rows_);
  const auto heads = q.size(1), width = q.size(2);
  const auto keys = repeated(k, heads), values = repeated(v, heads);
  std::vector<at::Tensor> parts;
  parts.reserve(groups_.size());
  for (const auto& g : groups_) {
    const auto of_group = [&](const at::Tensor& t) {
      return t.narrow(0, g.first_row, g.count * g.length)
          .view({g.count, g.length, heads, width})
          .transpose(1, 2);
    };
    const auto y = at::scaled_dot_product_attention(of_group(q), of_group(keys), of_group(values),
                                                    /*attn_mask=*/{}, /*dropout_p=*/0.0, causal);
    parts.push_back(y.transpose(1, 2).reshape({g.count * g.length, heads * width}));
  }
  if (parts.empty()) return q.reshape({rows_, heads * width});
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace rrfp::compute
