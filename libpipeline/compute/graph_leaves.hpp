/// Which leaves the graph of a forward ends in, and which of them the stash alone may answer for.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

namespace rrfp::compute {

struct graph_leaf {
  at::Tensor value;
  /// An operator other than the deferred ones uses it, or one of them as its x.
  bool is_ordinary = false;
};

/// Of the graph that begins at `root`. `anchor` is that of the stash (deferred.hpp): inputs that
/// come after it are the weights of a deferred operator.
std::vector<graph_leaf> leaves_of(const torch::autograd::Edge& root, const at::Tensor& anchor);

}  // namespace rrfp::compute
