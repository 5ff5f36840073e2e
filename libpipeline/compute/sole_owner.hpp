/// Whether the memory of a tensor may be written to or kept: nobody else can see it.
#pragma once

#include <ATen/core/Tensor.h>

namespace rrfp::compute {

inline bool is_sole_owner(const at::Tensor& t) {
  return t.is_contiguous() && t.use_count() == 1 && t.storage().use_count() == 1 &&
         t.storage().nbytes() == t.nbytes();
}

}  // namespace rrfp::compute
