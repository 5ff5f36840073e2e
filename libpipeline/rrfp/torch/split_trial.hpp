/// Finds out whether it pays to leave weight gradients of ordinary operators to W. The first
/// backwards of a chunk alternate between both ways; the bits are equal. If B and W together take
/// over a tenth longer than one backward, as with tiny layers, B computes all gradients from then
/// on, and W only adds them up.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <rrfp/base/statistics.hpp>

namespace rrfp::compute {

class split_trial {
 public:
  /// Whether the next backward shall leave weight gradients to W.
  bool splits_next() {
    if (is_decided_) return splits_;
    splits_ = !splits_;
    return splits_;
  }
  bool is_decided() const { return is_decided_; }

  /// The time of a microbatch's backward, W included.
  void add(bool is_split, std::int64_t ns) {
    if (is_decided_) return;
    times_[is_split].push_back(ns);
    if (std::min(times_[0].size(), times_[1].size()) < samples) return;
    is_decided_ = true;
    splits_ = median(1) <= median(0) + median(0) / 10;
    times_ = {};
  }

 private:
  static constexpr std::size_t warm_up = 1;  ///< the first time of each way allocates memory
  static constexpr std::size_t samples = warm_up + 3;

  std::int64_t median(std::size_t way) const {
    return lower_median(std::vector(times_[way].begin() + warm_up, times_[way].end()));
  }

  bool is_decided_ = false;
  bool splits_ = false;
  std::array<std::vector<std::int64_t>, 2> times_;  ///< fused, split
};

}  // namespace rrfp::compute
