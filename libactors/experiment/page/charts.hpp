/// The charts of the page: SVG, one panel per workload; all panels of one weather share one scale.
#pragma once

#include <string>

#include "page/page_data.hpp"

namespace rrfp::experiment {

/// One dot per run: its speed-up over the baseline, with the spread of its steps and the paper's
/// figure.
std::string speed_up_charts(const page_data& x, std::size_t weather);

/// One bar per entry of e.ablation: from the previous speed-up to its own. Empty without an
/// ablation.
std::string ablation_charts(const page_data& x, std::size_t weather);

}  // namespace rrfp::experiment
