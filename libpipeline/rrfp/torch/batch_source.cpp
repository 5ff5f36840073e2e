#include <ATen/core/Tensor.h>

#include <rrfp/torch/batch_source.hpp>

namespace rrfp::compute {

microbatch_layout layout_of(const microbatch& mb) {
  microbatch_layout layout;
  layout.lengths = mb.lengths;
  if (mb.inputs.dim() == 2) {
    layout.lengths.assign(static_cast<std::size_t>(mb.inputs.size(0)), mb.inputs.size(1));
  }
  layout.images.reserve(mb.images.size());
  for (const auto& image : mb.images) layout.images.push_back({image.size(1), image.size(2)});
  return layout;
}

}  // namespace rrfp::compute
