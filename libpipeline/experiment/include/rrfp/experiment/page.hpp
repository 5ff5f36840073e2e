/// What an experiment says, as a page: one HTML file that asks nothing of any network and can be
/// read, every figure of it, without its script.
///
/// Of each weather: speed-ups over the baseline with their spread and the paper's figures, the
/// paper's table, what each ingredient adds, and for each workload step times, where the devices'
/// time went, and memory.
#pragma once

#include <string>
#include <vector>

#include <rrfp/experiment/cell.hpp>

namespace rrfp::experiment {

/// Workloads x weathers x runs that a page may hold, a few hundred bytes each.
inline constexpr std::size_t page_rows_max = 10'000;

/// At least one engine; several stand after each other, with how well the last agrees with the
/// first. `machine` is what they ran on, or empty. Of more than `rows_max` rows an engine the first
/// workloads are shown, one at least, and the page says so.
std::string report_page(const experiment& e, const std::vector<engine_outcomes>& all,
                        const std::string& machine, std::size_t rows_max = page_rows_max);

}  // namespace rrfp::experiment
