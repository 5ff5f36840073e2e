/// Converts between the milliseconds of the user interface and the nanoseconds of the clock.
#pragma once

#include <algorithm>
#include <cmath>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

/// 11 days: far above any task, while 10^4 of them in a row still fit into the clock.
inline constexpr double duration_ms_max = 1e9;
inline constexpr auto duration_ms_range = "milliseconds from 0 to 1e9";

inline bool is_duration_ms(double ms) { return ms >= 0 && ms <= duration_ms_max; }

/// Rounds to the nearest nanosecond. Values above duration_ms_max are clamped, which truncates the
/// tail of a heavy-tailed distribution.
inline nanoseconds nanoseconds_of(double ms) {
  return std::llround(std::clamp(ms, 0.0, duration_ms_max) * 1e6);
}

}  // namespace rrfp::simulate
