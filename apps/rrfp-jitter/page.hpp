/// The results of an experiment as one self-contained HTML file. It loads nothing from a network,
/// and every figure can be read without the script.
///
/// For each weather: speed-ups over the baseline with their spread and the paper's figures, the
/// paper's table, the gain of each ingredient, and for each workload step times, device time and
/// memory.
#pragma once

#include <string>
#include <vector>

#include "cell.hpp"

namespace rrfp::experiment {

/// Maximum number of workloads x weathers x runs on a page; each takes a few hundred bytes.
inline constexpr std::size_t page_rows_max = 10'000;

/// `all` holds at least one engine. Several engines follow each other on the page, with a
/// comparison of the last with the first. `machine` describes where they ran; may be empty. If an
/// engine has more than `rows_max` rows, the page shows only the first workloads (at least one) and
/// says so.
std::string report_page(const experiment& e, const std::vector<engine_outcomes>& all,
                        const std::string& machine, std::size_t rows_max = page_rows_max);

/// The speed-ups of one engine as a picture (SVG), for papers and slides: a panel for each workload
/// and weather, and for each run a bar up to its speed-up over the baseline with its standard
/// deviation over the seeds. Needs neither a style sheet nor a script. As a page, it has at most
/// `rows_max` rows.
std::string figure_svg(const experiment& e, const engine_outcomes& made,
                       std::size_t rows_max = page_rows_max);

}  // namespace rrfp::experiment
