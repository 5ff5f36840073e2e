#include "graph_split.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace rrfp::compute {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr std::size_t none = static_cast<std::size_t>(-1);

struct visited {
  Node* node = nullptr;
  bool is_chain = false;      // reaches an end
  bool reaches_leaf = false;  // of those that are no end
  std::size_t branch = none;  // of a node beside the chain that reaches a leaf
};

/// Whether the node may run twice, and computes only the gradients that are asked for.
bool can_run_in_parts(Node& node) {
  // libtorch's own derivatives are traceable; an autograd::Function is not.
  if (!node.is_traceable()) return false;
  if (!node.pre_hooks().empty() || !node.post_hooks().empty()) return false;
  if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty()) return false;
  const auto name = node.name();
  return name.find("Attention") == std::string::npos && name.find("Rnn") == std::string::npos;
}

/// Frees the saved tensors of a node as soon as it has run, as the engine does unless it keeps the
/// whole graph.
struct release_after_run final : torch::autograd::FunctionPostHook {
  explicit release_after_run(Node& node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node_.release_variables();
    return outputs;
  }
  Node& node_;
};

/// The nodes of a graph, users after what they use, and the branches beside the chain.
class survey {
 public:
  survey(const Edge& root, const edge_list& ends);

  /// The engine runs the users of every node before the node.
  bool is_ordered() const { return is_ordered_; }
  const std::vector<visited>& nodes() const { return nodes_; }
  /// The branch of a node; none if the node is on the chain, reaches no leaf or is null.
  std::size_t branch_of(const Node* node) {
    if (node == nullptr) return none;
    const auto i = number_of_.at(node);
    return nodes_[i].is_chain || !nodes_[i].reaches_leaf ? none : root_of(i);
  }

 private:
  /// Branches are disjoint sets of nodes.
  std::size_t root_of(std::size_t i) {
    while (nodes_[i].branch != i) i = nodes_[i].branch = nodes_[nodes_[i].branch].branch;
    return i;
  }

  std::vector<visited> nodes_;
  std::unordered_map<const Node*, std::size_t> number_of_;
  bool is_ordered_ = true;
};

survey::survey(const Edge& root, const edge_list& ends) {
  std::unordered_set<const Node*> seen{root.function.get()};
  std::vector<Node*> open{root.function.get()};
  while (!open.empty()) {
    auto* const node = open.back();
    open.pop_back();
    nodes_.push_back({node});
    for (const auto& e : node->next_edges())
      if (e.is_valid() && seen.insert(e.function.get()).second) open.push_back(e.function.get());
  }
  // The accumulators of leaves have the highest number but use nothing, so they come first.
  const auto order = [](const visited& v) { return v.node->sequence_nr() + 1; };
  std::sort(nodes_.begin(), nodes_.end(),
            [&](const visited& a, const visited& b) { return order(a) < order(b); });
  for (std::size_t i = 0; i < nodes_.size(); ++i) number_of_.emplace(nodes_[i].node, i);

  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    auto& v = nodes_[i];
    v.branch = i;
    v.is_chain = std::any_of(ends.begin(), ends.end(),
                             [&](const Edge& e) { return e.function.get() == v.node; });
    v.reaches_leaf = !v.is_chain && dynamic_cast<const AccumulateGrad*>(v.node) != nullptr;
    for (const auto& e : v.node->next_edges()) {
      if (!e.is_valid()) continue;
      const auto to = number_of_.at(e.function.get());
      is_ordered_ = is_ordered_ && order(nodes_[to]) < order(v);
      if (!is_ordered_) return;
      v.is_chain = v.is_chain || nodes_[to].is_chain;
      v.reaches_leaf = v.reaches_leaf || nodes_[to].reaches_leaf;
    }
    if (v.is_chain) continue;
    for (const auto& e : v.node->next_edges())
      if (const auto branch = branch_of(e.function.get()); branch != none)
        nodes_[branch].branch = i;
  }
}

}  // namespace

std::int64_t weight_graph::work() const {
  std::int64_t outputs = 0, inputs = 1;
  for (const auto& s : seeds)
    if (s.defined()) outputs += s.numel();
  for (const auto& l : leaves)
    if (l.dim() >= 2 && l.numel() > 0) inputs = std::max(inputs, l.numel() / l.size(0));
  return outputs * inputs;
}

variable_list weight_graph::run() {
  edge_list wanted;
  for (const auto& l : leaves) wanted.push_back(torch::autograd::impl::gradient_edge(l));
  const auto from = std::exchange(roots, {});
  const auto with = std::exchange(seeds, {});
  return torch::autograd::Engine::get_default_engine().execute(
      from, with, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
}

graph_split::graph_split(const Edge& root, const edge_list& ends) {
  if (!root.is_valid()) return;
  survey graph(root, ends);
  if (!graph.is_ordered()) return;
  const auto& nodes = graph.nodes();

  struct branch_state {
    bool has_matrix = false;
    bool is_allowed = true;
    bool is_left = false;
    std::vector<at::Tensor> leaves;
    std::size_t group = none;
  };
  std::map<std::size_t, branch_state> branches;
  for (const auto& v : nodes) {
    const auto* const end = dynamic_cast<const AccumulateGrad*>(v.node);
    if (end == nullptr || v.is_chain) continue;
    auto& b = branches[graph.branch_of(v.node)];
    b.leaves.push_back(end->variable);
    b.has_matrix = b.has_matrix || end->variable.dim() >= 2;
  }

  // From the output to the input, the order of execution.
  const auto each_exit = [&](const auto& visit) {
    for (auto v = nodes.rbegin(); v != nodes.rend(); ++v) {
      if (!v->is_chain || !v->reaches_leaf) continue;
      std::vector<std::size_t> to;
      for (const auto& e : v->node->next_edges()) to.push_back(graph.branch_of(e.function.get()));
      if (std::any_of(to.begin(), to.end(), [](auto branch) { return branch != none; }))
        visit(*v->node, to);
    }
  };
  std::unordered_set<const Node*> run_twice;
  each_exit([&](Node& node, const std::vector<std::size_t>& to) {
    if (can_run_in_parts(node)) return;
    for (const auto branch : to)
      if (branch != none) branches[branch].is_allowed = false;
  });
  const auto is_wanted = [&](std::size_t branch) {
    return branch != none && branches[branch].is_allowed && branches[branch].has_matrix;
  };
  each_exit([&](Node& node, const std::vector<std::size_t>& to) {
    if (std::any_of(to.begin(), to.end(), is_wanted)) run_twice.insert(&node);
  });
  each_exit([&](Node& node, const std::vector<std::size_t>& to) {
    if (run_twice.contains(&node)) return;
    for (const auto branch : to)
      if (branch != none && !branches[branch].has_matrix) branches[branch].is_allowed = false;
  });
  // Unless the root itself is beside the chain: then no node runs twice.
  const auto whole = graph.branch_of(root.function.get());
  for (auto& [number, b] : branches)
    b.is_left = b.is_allowed && (number == whole ? b.has_matrix : whole == none);
  if (std::none_of(branches.begin(), branches.end(),
                   [](const auto& b) { return b.second.is_left; }))
    return;

  root_ = root;
  is_whole_ = whole != none;
  const auto join = [&](branch_state& b, std::size_t into) {
    if (b.group == into) return;
    const auto from = std::exchange(b.group, into);
    if (from == none) {
      groups_[into].leaves.insert(groups_[into].leaves.end(), b.leaves.begin(), b.leaves.end());
      return;
    }
    for (auto& [number, other] : branches)
      if (other.group == from) other.group = into;
    auto& a = groups_[into];
    auto& z = groups_[from];
    a.leaves.insert(a.leaves.end(), z.leaves.begin(), z.leaves.end());
    a.captures.insert(a.captures.end(), z.captures.begin(), z.captures.end());
    z = {};
  };
  if (is_whole_) {
    groups_.emplace_back();
    join(branches[whole], 0);
    groups_[0].captures.push_back(0);
    captures_.push_back(root);
  }
  each_exit([&](Node& node, const std::vector<std::size_t>& to) {
    exit_node exit{&node, {}};
    auto into = none;
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (to[i] == none || !branches[to[i]].is_left) continue;
      exit.edges.push_back(i);
      if (into == none) into = branches[to[i]].group;
    }
    if (exit.edges.empty()) return;
    if (into == none) {
      into = groups_.size();
      groups_.emplace_back();
    }
    for (const auto i : exit.edges) join(branches[to[i]], into);
    for (std::uint32_t input = 0; input < node.num_inputs(); ++input) {
      groups_[into].captures.push_back(captures_.size());
      captures_.emplace_back(node.getptr(), input);
    }
    exits_.push_back(std::move(exit));
  });
  std::erase_if(groups_, [](const group& g) { return g.captures.empty(); });
  for (auto& g : groups_) {
    std::sort(g.captures.begin(), g.captures.end());
    for (const auto& l : g.leaves) left_.insert(l.unsafeGetTensorImpl());
  }

  std::unordered_set<const Node*> kept;
  for (const auto& exit : exits_) kept.insert(exit.node);
  for (const auto& v : nodes) {
    const auto branch = graph.branch_of(v.node);
    if (!kept.contains(v.node) && (branch == none || !branches[branch].is_left))
      only_in_b_.push_back(v.node);
  }
  for (auto* const node : only_in_b_)
    node->add_post_hook(std::make_unique<release_after_run>(*node));
}

std::vector<weight_graph> graph_split::detach(variable_list captured) {
  for (auto* const node : only_in_b_) node->release_variables();
  for (const auto& exit : exits_) {
    auto& edges = exit.node->next_edges();
    for (std::size_t i = 0; i < edges.size(); ++i)
      if (std::find(exit.edges.begin(), exit.edges.end(), i) == exit.edges.end()) edges[i] = {};
  }
  std::vector<weight_graph> parts;
  for (auto& g : groups_) {
    weight_graph part{{}, {}, std::move(g.leaves)};
    for (const auto i : g.captures) {
      part.roots.push_back(captures_[i]);
      part.seeds.push_back(std::move(captured[i]));
    }
    parts.push_back(std::move(part));
  }
  *this = {};
  return parts;
}

}  // namespace rrfp::compute
