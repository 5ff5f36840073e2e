/// Rows of several sequences, or images, one after another without padding: where each begins, so
/// that attention stays within it and positions count from its start.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rrfp::compute {

class packing {
 public:
  /// For rows that are on `device`.
  explicit packing(std::span<const std::int64_t> lengths, at::Device device = at::kCPU);

  /// All rows together.
  std::int64_t rows() const { return rows_; }
  std::int64_t longest() const { return longest_; }
  /// Of each row within its sequence; int64 [rows].
  const at::Tensor& positions() const { return positions_; }

  /// softmax(q k^T / sqrt(width)) v within each sequence. `q` [rows, heads, width], `k` and `v`
  /// [rows, kv_heads, width], where kv_heads divides heads: each serves several of them in turn.
  /// `causal`: a row sees itself and those before it. Returns [rows, heads * width].
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    bool causal) const;

 private:
  /// Neighbours of one length are computed together.
  struct group_of_equals {
    std::int64_t first_row;
    std::int64_t count;
    std::int64_t length;
  };

  std::vector<group_of_equals> groups_;
  std::int64_t rows_ = 0;
  std::int64_t longest_ = 0;
  at::Tensor positions_;
};

}  // namespace rrfp::compute
