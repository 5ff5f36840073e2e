#include "graph_split.hpp"

#include <algorithm>
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

/// Whether this is one of libtorch's own derivatives, not an autograd::Function. Python's functions
/// cannot be asked by is_traceable(): those of torch.compile then raise.
bool is_derivative(const Node& node) {
  return dynamic_cast<const torch::autograd::TraceableFunction*>(&node) != nullptr;
}

/// Whether the node may run twice, and computes only the gradients that are asked for.
bool can_run_in_parts(Node& node) {
  if (!is_derivative(node)) return false;
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

/// The nodes of a graph in the reverse order of execution, and the branches beside the chain.
class survey {
 public:
  struct node {
    Node* address = nullptr;
    const AccumulateGrad* leaf = nullptr;
    bool is_chain = false;      // reaches an end
    bool reaches_leaf = false;  // one that is no end
    std::size_t parent = none;  // branches are disjoint sets of nodes
  };
  /// A node of the chain from which branches leave.
  struct exit {
    Node* address = nullptr;
    std::vector<std::size_t> to;  // the branch behind each edge, or none
  };

  survey(const Edge& root, const edge_list& ends);

  /// Whether the engine runs all users of a node before the node.
  bool is_ordered() const { return is_ordered_; }
  const std::vector<node>& nodes() const { return nodes_; }
  /// The branch of a node; none if the node is on the chain, reaches no leaf or is null.
  std::size_t branch_of(const Node* address);
  /// In the order of execution.
  std::vector<exit> exits();
  void join(std::size_t branch, std::size_t other) { nodes_[find(branch)].parent = find(other); }

 private:
  void collect(const Edge& root);
  std::size_t find(std::size_t i) {
    while (nodes_[i].parent != i) i = nodes_[i].parent = nodes_[nodes_[i].parent].parent;
    return i;
  }

  std::vector<node> nodes_;
  std::unordered_map<const Node*, std::size_t> number_of_;
  bool is_ordered_ = true;
};

/// Accumulators of leaves have the highest number of all nodes but use none, so they come first.
std::uint64_t order_of(const Node& node) { return node.sequence_nr() + 1; }

void survey::collect(const Edge& root) {
  std::unordered_set<const Node*> seen{root.function.get()};
  std::vector<Node*> open{root.function.get()};
  while (!open.empty()) {
    auto* const from = open.back();
    open.pop_back();
    nodes_.push_back({from, dynamic_cast<const AccumulateGrad*>(from)});
    for (const auto& e : from->next_edges())
      if (e.is_valid() && seen.insert(e.function.get()).second) open.push_back(e.function.get());
  }
  std::sort(nodes_.begin(), nodes_.end(), [](const node& a, const node& b) {
    return order_of(*a.address) < order_of(*b.address);
  });
  for (std::size_t i = 0; i < nodes_.size(); ++i) number_of_.emplace(nodes_[i].address, i);
}

survey::survey(const Edge& root, const edge_list& ends) {
  collect(root);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    auto& n = nodes_[i];
    n.parent = i;
    n.is_chain = std::any_of(ends.begin(), ends.end(),
                             [&](const Edge& e) { return e.function.get() == n.address; });
    n.reaches_leaf = n.leaf != nullptr && !n.is_chain;
    for (const auto& e : n.address->next_edges()) {
      if (!e.is_valid()) continue;
      is_ordered_ = order_of(*e.function) < order_of(*n.address);
      if (!is_ordered_) return;
      const auto& next = nodes_[number_of_.at(e.function.get())];
      n.is_chain = n.is_chain || next.is_chain;
      n.reaches_leaf = n.reaches_leaf || next.reaches_leaf;
    }
    if (n.is_chain) continue;
    for (const auto& e : n.address->next_edges())
      if (const auto branch = branch_of(e.function.get()); branch != none) join(branch, i);
  }
}

std::size_t survey::branch_of(const Node* address) {
  if (address == nullptr) return none;
  const auto i = number_of_.at(address);
  return nodes_[i].is_chain || !nodes_[i].reaches_leaf ? none : find(i);
}

std::vector<survey::exit> survey::exits() {
  std::vector<exit> all;
  for (auto n = nodes_.rbegin(); n != nodes_.rend(); ++n) {
    if (!n->is_chain || !n->reaches_leaf) continue;
    exit leaving{n->address, {}};
    for (const auto& e : n->address->next_edges())
      leaving.to.push_back(branch_of(e.function.get()));
    if (std::any_of(leaving.to.begin(), leaving.to.end(), [](auto to) { return to != none; }))
      all.push_back(std::move(leaving));
  }
  return all;
}

/// The branches that W runs.
std::unordered_set<std::size_t> choose_branches(survey& graph, const Edge& root,
                                                functions_in_w functions) {
  std::unordered_set<std::size_t> has_matrix, refused{none}, chosen;
  for (const auto& n : graph.nodes())
    if (functions == functions_in_w::none && n.leaf == nullptr && !is_derivative(*n.address))
      refused.insert(graph.branch_of(n.address));
  for (const auto& n : graph.nodes())
    if (n.leaf != nullptr && !n.is_chain && n.leaf->variable.dim() >= 2)
      has_matrix.insert(graph.branch_of(n.address));
  // Without a chain there is a single branch, from the root, and no node runs twice.
  if (const auto whole = graph.branch_of(root.function.get()); whole != none)
    return refused.contains(whole) ? chosen : has_matrix;

  const auto exits = graph.exits();
  for (const auto& e : exits)
    if (!can_run_in_parts(*e.address)) refused.insert(e.to.begin(), e.to.end());
  for (const auto& e : exits)
    if (std::none_of(e.to.begin(), e.to.end(),
                     [&](auto to) { return has_matrix.contains(to) && !refused.contains(to); }))
      refused.insert(e.to.begin(), e.to.end());
  for (const auto& e : exits)
    for (const auto to : e.to)
      if (!refused.contains(to)) chosen.insert(to);
  return chosen;
}

}  // namespace

std::vector<graph_leaf> leaves_of(const Edge& root, const at::Tensor& anchor) {
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

std::int64_t weight_graph::work() const {
  std::int64_t outputs = 0, inputs = 1;
  for (const auto& s : seeds)
    if (s.defined()) outputs += s.numel();
  for (const auto& l : leaves)
    if (l.dim() >= 2 && l.numel() > 0) inputs = std::max(inputs, l.numel() / l.size(0));
  return outputs * inputs;
}

variable_list weight_graph::run() {
  edge_list wanted, from;
  variable_list with;
  for (const auto& l : leaves) wanted.push_back(torch::autograd::impl::gradient_edge(l));
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (!seeds[i].defined()) continue;
    from.push_back(roots[i]);
    with.push_back(seeds[i]);
  }
  roots.clear();
  seeds.clear();
  if (from.empty()) return variable_list(leaves.size());
  return torch::autograd::Engine::get_default_engine().execute(
      from, with, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
}

graph_split::graph_split(const Edge& root, const edge_list& ends, functions_in_w functions) {
  if (!root.is_valid()) return;
  survey graph(root, ends);
  if (!graph.is_ordered()) return;
  const auto chosen = choose_branches(graph, root, functions);
  if (chosen.empty()) return;
  const auto branch_of_w = [&](const Node* node) {
    const auto branch = graph.branch_of(node);
    return chosen.contains(branch) ? branch : none;
  };
  auto exits = graph.exits();
  for (auto& e : exits) {
    std::erase_if(e.to, [&](auto to) { return !chosen.contains(to); });
    for (const auto to : e.to) graph.join(to, e.to.front());
  }

  root_ = root;
  is_whole_ = branch_of_w(root.function.get()) != none;
  std::unordered_map<std::size_t, std::size_t> group_of;
  const auto group_at = [&](const Node* node) -> group& {
    const auto [found, is_new] = group_of.try_emplace(branch_of_w(node), groups_.size());
    if (is_new) groups_.emplace_back();
    return groups_[found->second];
  };
  const auto capture = [&](group& into, Edge edge) {
    into.captures.push_back(captures_.size());
    captures_.push_back(std::move(edge));
  };
  if (is_whole_) capture(group_at(root.function.get()), root);
  std::unordered_set<const Node*> is_exit;
  for (const auto& e : exits) {
    if (e.to.empty()) continue;
    is_exit.insert(e.address);
    exit_node kept{e.address, {}};
    const Node* into = nullptr;
    for (std::size_t i = 0; i < e.address->next_edges().size(); ++i) {
      const auto* const next = e.address->next_edge(i).function.get();
      if (branch_of_w(next) == none) continue;
      kept.edges.push_back(i);
      into = next;
    }
    for (std::uint32_t input = 0; input < e.address->num_inputs(); ++input)
      capture(group_at(into), {e.address->getptr(), input});
    exits_.push_back(std::move(kept));
  }
  for (const auto& n : graph.nodes()) {
    if (branch_of_w(n.address) == none) {
      if (n.leaf == nullptr && !is_exit.contains(n.address))
        n.address->add_post_hook(std::make_unique<release_after_run>(*n.address));
    } else if (n.leaf != nullptr) {
      group_at(n.address).leaves.push_back(n.leaf->variable);
      left_.insert(n.leaf->variable.unsafeGetTensorImpl());
    }
  }
}

std::vector<weight_graph> graph_split::detach(variable_list captured) {
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
