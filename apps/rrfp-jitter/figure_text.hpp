#pragma once

#include <string>

#include <fmt/format.h>

namespace rrfp::experiment {

/// "1.56"; empty without a figure.
inline std::string figure_text(double figure) {
  return figure > 0 ? fmt::format("{:.2f}", figure) : "";
}

}  // namespace rrfp::experiment
