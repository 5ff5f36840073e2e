/// The state of a rank as bytes: the names, types, shapes and parts of its tensors, then their
/// data. Only the same version reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/rank_compute.hpp>

namespace rrfp::actors {

/// Copies contiguous tensors in host memory into `make_room(bytes)`.
tensor_buffer bytes_of_state(std::span<const compute::named_buffer> tensors,
                             const std::function<tensor_buffer(std::int64_t)>& make_room);

/// Views of the bytes, which they keep. Error: these are not the bytes of a state.
result<std::vector<compute::named_buffer>> state_of_bytes(const tensor_buffer& bytes);

}  // namespace rrfp::actors
