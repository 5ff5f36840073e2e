#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "slowdown.hpp"

namespace rrfp::test {

/// Polls a condition that cannot be waited for, at first often; false after `limit`, which is
/// longer under a sanitizer.
inline bool eventually(const std::function<bool()>& holds,
                       std::chrono::milliseconds limit = std::chrono::seconds{60}) {
  using clock = std::chrono::steady_clock;
  const auto begun = clock::now();
  while (!holds()) {
    const auto waited = clock::now() - begun;
    if (waited > limit * slowdown) return false;
    std::this_thread::sleep_for(std::clamp<clock::duration>(
        waited / 50, std::chrono::microseconds{200}, std::chrono::milliseconds{20}));
  }
  return true;
}

}  // namespace rrfp::test
