/// The leaves of the graph of a forward pass, and which of them only deferred operators use.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

namespace rrfp::compute {

struct graph_leaf {
  at::Tensor value;
  /// An ordinary operator uses the leaf, or a deferred operator uses it as x.
  bool is_ordinary = false;
};

/// The leaves of the graph that begins at `root`. `anchor` is the anchor of the stash
/// (deferred.hpp): the inputs after it are the weights of a deferred operator.
std::vector<graph_leaf> leaves_of(const torch::autograd::Edge& root, const at::Tensor& anchor);

}  // namespace rrfp::compute
