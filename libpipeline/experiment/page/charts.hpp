/// The drawings of the page: SVG, a panel a workload, all of one weather on one scale.
#pragma once

#include <string>

#include "page/examined.hpp"

namespace rrfp::experiment {

/// A dot a run: its speed-up over the baseline, with the spread of its steps and the paper's
/// figure.
std::string speed_up_charts(const examined& x, std::size_t weather);

/// A bar an entry of e.ablation: from the speed-up before it to its own. Empty without an ablation.
std::string ablation_charts(const examined& x, std::size_t weather);

}  // namespace rrfp::experiment
