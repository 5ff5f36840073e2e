/// Whether a tensor is the only reference to its memory, so the memory may be modified or kept.
#pragma once

#include <ATen/core/Tensor.h>

namespace rrfp::compute {

inline bool is_sole_owner(const at::Tensor& t) {
  return t.is_contiguous() && t.use_count() == 1 && t.storage().use_count() == 1 &&
         t.storage().nbytes() == t.nbytes();
}

}  // namespace rrfp::compute
