/// The requirements of fixed schedules on the shape. The errors name the policy, what it expects
/// and what came.
#pragma once

#include <cstdint>
#include <string_view>

#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp::policies {

status needs_one_chunk(std::string_view policy, const pipeline_shape& shape);
status needs_placement(std::string_view policy, const pipeline_shape& shape, placement expected);
/// `formula` explains the number: "2p-1".
status needs_microbatches(std::string_view policy, const pipeline_shape& shape, std::uint32_t least,
                          std::string_view formula);

}  // namespace rrfp::policies
