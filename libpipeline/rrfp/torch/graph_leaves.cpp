#include "graph_leaves.hpp"

#include <unordered_map>
#include <unordered_set>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

namespace rrfp::compute {

std::vector<graph_leaf> leaves_of(const torch::autograd::Edge& root, const at::Tensor& anchor) {
  using torch::autograd::AccumulateGrad;
  using torch::autograd::Node;
  const auto* const end_of_anchor = torch::autograd::impl::gradient_edge(anchor).function.get();
  std::vector<graph_leaf> leaves;
  std::unordered_map<const Node*, std::size_t> number_of;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto reach = [&](const Node* node, bool is_ordinary) {
    if (node == nullptr || node == end_of_anchor) return;
    if (const auto known = number_of.find(node); known != number_of.end()) {
      leaves[known->second].is_ordinary |= is_ordinary;
      return;
    }
    if (seen.contains(node)) return;
    if (const auto* const end = dynamic_cast<const AccumulateGrad*>(node); end != nullptr) {
      number_of.emplace(node, leaves.size());
      leaves.push_back({end->variable, is_ordinary});
      return;
    }
    seen.insert(node);
    open.push_back(node);
  };
  reach(root.function.get(), true);
  while (!open.empty()) {
    const auto* const node = open.back();
    open.pop_back();
    bool is_after_anchor = false;
    for (const auto& next : node->next_edges()) {
      reach(next.function.get(), !is_after_anchor);
      is_after_anchor = is_after_anchor || next.function.get() == end_of_anchor;
    }
  }
  return leaves;
}

}  // namespace rrfp::compute
