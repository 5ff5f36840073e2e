#include <rrfp/metrics/board.hpp>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>

namespace rrfp::metrics {

health health_of(const run_counters* run, std::int64_t now) {
  if (run == nullptr) return {true, "no run has started yet"};
  if (run->over.value()) return {true, fmt::format("{}: over", run->run)};
  const auto silent = seconds(now - run->last_progress.value());
  if (run->hang_timeout_s > 0 && silent > run->hang_timeout_s)
    return {false, fmt::format("{}: no progress for {:.1f} s; limit {:g} s "
                               "(run.hang_timeout_s)",
                               run->run, silent, run->hang_timeout_s)};
  return {true, fmt::format("{}: last progress {:.1f} s ago", run->run, silent)};
}

}  // namespace rrfp::metrics
