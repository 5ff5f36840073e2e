/// The charts of the page: SVG, one panel per workload; all panels of one weather share one scale.
#pragma once

#include <string>
#include <string_view>

#include "page_data.hpp"

namespace rrfp::experiment {

/// One dot per run: its speed-up over the baseline, with the spread of its steps and the paper's
/// figure.
std::string speed_up_charts(const page_data& x, std::size_t weather);

/// One bar per entry of e.ablation: from the previous speed-up to its own. Empty without an
/// ablation.
std::string ablation_charts(const page_data& x, std::size_t weather);

/// The distance between ticks, 1, 2 or 5 times a power of ten, so that there are at most so many.
double tick_for(double width, int ticks_max);

/// The name of a run, short enough for the names of a chart.
std::string cut(std::string_view name);

}  // namespace rrfp::experiment
