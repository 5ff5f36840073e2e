/// The order in which the first virtual stage admits (numbers) the microbatches of a step.
/// Gradients are a sum, so any order gives the same result. With uneven microbatches the order
/// decides how well the pipeline fills and drains.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace rrfp {

/// loaded: the order of the data. small_large_small: the cheapest microbatches at both ends, the
/// most expensive in the middle.
enum class admission : std::uint8_t { loaded, small_large_small };

std::string_view name(admission a);

/// Maps the position in the step to the index of the loaded microbatch. `cost` holds one estimate
/// per loaded microbatch, in any unit; if all are equal, the loaded order stays. O(m log m).
std::vector<std::uint32_t> admission_order(admission a, std::span<const double> cost);

}  // namespace rrfp
