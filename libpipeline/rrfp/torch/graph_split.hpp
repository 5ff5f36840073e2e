/// Splits the backward graph of a microbatch for any operators: what B runs and what W runs.
///
/// B needs the nodes from which the stage's input is reachable: the chain. Branches that leave the
/// chain end at parameters alone, so they can wait. For each node of the chain with such a branch,
/// B captures the gradient that arrives at the node; W runs the node again from that gradient,
/// towards the branch only. The idea is that of torch.distributed.pipelining (stage_backward_input,
/// stage_backward_weight).
///
/// The bits are those of one backward. The engine runs ready nodes in descending order of their
/// sequence numbers. Operators are numbered as they are created, so this order visits every node
/// after all its users; the constructor checks that. W therefore visits its nodes in the order of
/// the whole backward, and gradients of a node with several users are summed in the same order.
///
/// Some branches stay in B:
/// - A branch that leaves from a node with hooks or from an autograd::Function, because a function
///   of the user should run once. In the branch itself they run once, in W.
/// - A branch that leaves from an operator which always computes all its gradients (attention, RNN
///   layers), because that work would be done twice.
/// - A branch without any matrix, if no other branch leaves from its nodes: the gradient
///   of a vector is a cheap sum, and what W needs for it would take memory.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace rrfp::compute {

struct graph_leaf {
  at::Tensor value;
  /// An ordinary operator uses the leaf, or a deferred operator uses it as x.
  bool is_ordinary = false;
};

/// The leaves of the graph that begins at `root`. `anchor` is the anchor of the stash
/// (deferred.hpp): the inputs after it are the weights of a deferred operator.
std::vector<graph_leaf> leaves_of(const torch::autograd::Edge& root, const at::Tensor& anchor);

/// A part of a graph that computes weight gradients in W.
struct weight_graph {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list seeds;  ///< one for each root; undefined where none arrived
  std::vector<at::Tensor> leaves;

  /// In multiplications, roughly.
  std::int64_t work() const;
  /// The gradients of the leaves, undefined where the loss does not depend on them. Frees the saved
  /// tensors; runs once.
  torch::autograd::variable_list run();
};

/// Whether W may run branches that contain an autograd::Function. On a stage with several ranks it
/// may not: the function may communicate, and only F and B do (parallel_operators.hpp).
enum class functions_in_w : std::uint8_t { none, all };

class graph_split {
 public:
  /// Leaves nothing to W.
  graph_split() = default;
  /// `ends`: gradient edges of the leaves that B must reach, in the graph of `root` or not.
  graph_split(const torch::autograd::Edge& root, const torch::autograd::edge_list& ends,
              functions_in_w functions);

  bool is_empty() const { return groups_.empty(); }
  /// The graph reaches none of the ends: B has nothing to run, and the gradient of the root is the
  /// only capture.
  bool is_whole() const { return is_whole_; }
  /// Whether W computes the gradient of `leaf`.
  bool is_left(const at::Tensor& leaf) const { return left_.contains(leaf.unsafeGetTensorImpl()); }
  /// Where B captures gradients. Unless is_empty(), B must keep the graph; nodes that W does not
  /// need free their saved tensors when they have run.
  const torch::autograd::edge_list& captures() const { return captures_; }
  /// After B: detaches what W needs from the rest of the graph. `captured`: the gradients at
  /// captures(). The parts share no node and no leaf.
  std::vector<weight_graph> detach(torch::autograd::variable_list captured);

 private:
  struct group {
    std::vector<std::size_t> captures;  // indices in captures_, in the order of execution
    std::vector<at::Tensor> leaves;
  };
  /// A node of the chain that W runs again.
  struct exit_node {
    torch::autograd::Node* node = nullptr;
    std::vector<std::size_t> edges;  // those that W runs along
  };

  torch::autograd::Edge root_;  // keeps the nodes alive
  bool is_whole_ = false;
  torch::autograd::edge_list captures_;
  std::vector<group> groups_;
  std::vector<exit_node> exits_;
  std::unordered_set<const at::TensorImpl*> left_;
};

}  // namespace rrfp::compute
