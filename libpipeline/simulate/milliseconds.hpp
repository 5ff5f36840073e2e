/// Between the milliseconds that people write and the nanoseconds that the clock counts.
#pragma once

#include <algorithm>
#include <cmath>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

/// 11 days: far above any task, and 10^4 of them in a row still fit into the clock.
inline constexpr double duration_ms_max = 1e9;
inline constexpr auto duration_ms_range = "milliseconds from 0 to 1e9";

inline bool is_duration_ms(double ms) { return ms >= 0 && ms <= duration_ms_max; }

/// To the nearest nanosecond. The tail of a heavy distribution is cut at duration_ms_max.
inline nanoseconds nanoseconds_of(double ms) {
  return std::llround(std::clamp(ms, 0.0, duration_ms_max) * 1e6);
}

}  // namespace rrfp::simulate
