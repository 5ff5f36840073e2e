/// Order statistics of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace rrfp {

/// The value at `share` (0 to 1) of the way through the sorted values, interpolated linearly
/// between the two nearest; 0 without values.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const auto above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

/// One of the values, of which there is at least one: for an even count the smaller of the two in
/// the middle.
template <class Value>
Value lower_median(std::vector<Value> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace rrfp
