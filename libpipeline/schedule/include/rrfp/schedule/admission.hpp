/// In which order the microbatches of a step are admitted (numbered) at the first virtual stage.
/// Gradients are a sum, so the order is free; with uneven microbatches it decides how well the
/// pipeline fills and drains.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace rrfp {

/// loaded: as the data comes. small_large_small: the cheapest at both ends, the dearest in the
/// middle. large_first and small_first: sorted.
enum class admission : std::uint8_t { loaded, small_large_small, large_first, small_first };

std::string_view name(admission a);
std::optional<admission> admission_of(std::string_view name);

/// Position in the step -> index of the loaded microbatch. `cost` holds one estimate a loaded
/// microbatch, in any unit; equal costs keep the loaded order. O(m log m).
std::vector<std::uint32_t> admission_order(admission a, std::span<const double> cost);

}  // namespace rrfp
