/// Mean and spread of many draws.
#pragma once

#include <cmath>
#include <cstdint>

namespace rrfp::simulate::testing {

constexpr std::uint32_t draws = 200'000;

class sample {
 public:
  void add(double x) {
    ++count_;
    const auto above = x - mean_;
    mean_ += above / static_cast<double>(count_);
    squares_ += above * (x - mean_);
  }
  double mean() const { return mean_; }
  double deviation() const { return std::sqrt(squares_ / static_cast<double>(count_)); }

 private:
  std::uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

}  // namespace rrfp::simulate::testing
