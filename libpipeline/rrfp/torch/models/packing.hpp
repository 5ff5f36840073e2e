/// The layout of concatenated sequences or images without padding: where each begins, so that
/// attention stays within it and positions count from its start.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rrfp::compute {

class packing {
 public:
  /// `device`: the device of the rows.
  explicit packing(std::span<const std::int64_t> lengths, at::Device device = at::kCPU);

  /// Total number of rows.
  std::int64_t rows() const { return rows_; }
  std::int64_t longest() const { return longest_; }
  /// Position of each row in its sequence; int64 [rows].
  const at::Tensor& positions() const { return positions_; }

  /// softmax(q k^T / sqrt(width)) v within each sequence. `q` [rows, heads, width], `k` and `v`
  /// [rows, kv_heads, width], where kv_heads divides heads: each kv head serves several heads.
  /// `causal`: a row attends to itself and earlier rows. Returns [rows, heads * width].
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    bool causal) const;

 private:
  /// Consecutive sequences of equal length, computed together.
  struct equal_length_group {
    std::int64_t first_row;
    std::int64_t count;
    std::int64_t length;
  };

  std::vector<equal_length_group> groups_;
  std::int64_t rows_ = 0;
  std::int64_t longest_ = 0;
  at::Tensor positions_;
};

}  // namespace rrfp::compute
