/// The state of a rank as bytes: the names, types, shapes and parts of its tensors, then their
/// data. Only the same version reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/rank_compute.hpp>

namespace rrfp::actors {

/// Copies contiguous tensors in host memory into `make_room(bytes)`.
at::Tensor bytes_of_state(std::span<const compute::named_tensor> tensors,
                          const std::function<at::Tensor(std::int64_t)>& make_room);

/// Views of the bytes, which they keep. Error: these are not the bytes of a state.
result<std::vector<compute::named_tensor>> state_of_bytes(const at::Tensor& bytes);

}  // namespace rrfp::actors
