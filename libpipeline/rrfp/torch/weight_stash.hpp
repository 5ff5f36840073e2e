/// The inputs of W for one microbatch on one chunk, and their conversion to gradients.
///
/// Operators register their weights in F (`use`) and add a record in B. fold() computes the
/// gradients from the records in the order of B. With `immediate` a record becomes a gradient at
/// once. As in autograd, the records of one weight are summed before the sum is added to the
/// gradient, so a weight that is used twice gets the same bits. A weight that ordinary operators
/// also use is left to the graph, because only autograd knows the order of that sum. Weights of
/// ordinary operators have records of two kinds: a gradient that B computed, or a part of the graph
/// that W runs (graph_split.hpp).
///
/// Backward may run in another thread than forward (CUDA), so the graph holds a reference to the
/// stash; only one thread uses it at a time.
#pragma once

#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <rrfp/core/event.hpp>
#include <rrfp/torch/memory_meter.hpp>

#include "graph_split.hpp"

namespace rrfp::compute {

class weight_stash final : public torch::CustomClassHolder {
 public:
  /// Index of a weight in this stash; `none` if it gets no gradient.
  using slot = std::int64_t;
  static constexpr slot none = -1;

  /// `meter`, if any, stops counting the gradients, which outlive the microbatch.
  explicit weight_stash(memory_meter* meter = nullptr);

  /// A leaf that is an input of every deferred operator, so that the engine also runs operators
  /// whose other inputs need no gradient.
  const at::Tensor& anchor() const { return anchor_; }
  /// Registers one use of a weight by an operator, in F.
  slot use(const at::Tensor& weight);
  /// Call between F and B: deferred operators then return the gradient of `weight` to the graph.
  void leave_to_graph(const at::Tensor& weight);

  void set_immediate(bool immediate) { immediate_ = immediate; }

  /// Gradients for the graph; undefined if W computes them or none is needed.
  struct gradients {
    at::Tensor weight;
    at::Tensor bias;
  };
  /// In B: dW = gy^T * x, db = sum of gy, over all rows.
  gradients linear(slot weight, slot bias, const at::Tensor& x, const at::Tensor& gy);
  /// In B: row i of dW is the sum of gy where indices are i.
  at::Tensor embedding(slot weight, const at::Tensor& indices, const at::Tensor& gy);
  /// After B: adds a gradient that ordinary autograd computed.
  void ordinary(const at::Tensor& weight, at::Tensor gradient);
  /// After B: leaves a part of the graph to W.
  void postpone(weight_graph graph);

  /// Computes all pending gradients and adds them to those of the weights.
  void fold();
  /// Computes this piece's share of the gradients, by work; fold() is the last piece. The order of
  /// all sums is that of a single fold().
  void fold(const task_piece& piece);
  /// Frees the pending records. Records of graphs may refer to the stash in a cycle: call before
  /// the last reference from outside is released, unless the stash is folded.
  void clear();

 private:
  enum class kind : std::uint8_t { linear, embedding, ordinary, graph };
  struct record {
    kind type;
    slot weight = none;
    slot bias = none;
    at::Tensor x;  // or indices; undefined for ordinary
    at::Tensor gy;
    at::Tensor leaf;     // ordinary only
    weight_graph graph;  // graph only
  };
  struct use_of_weight {
    at::Tensor weight;
    int left = 0;  // pending records
    at::Tensor sum;
    bool in_graph = false;
  };

  static std::int64_t work_of(const record& r);
  void add_record(record r);
  void apply_record(record r);
  bool is_in_graph(slot s) const { return s != none && slots_[s].in_graph; }
  at::Tensor of_weight(slot s, const at::Tensor& x, const at::Tensor& gy) const;
  at::Tensor of_bias(slot s, const at::Tensor& gy) const;
  at::Tensor of_rows(slot s, const at::Tensor& indices, const at::Tensor& gy) const;
  at::Tensor as_master(slot s, at::Tensor gradient) const;
  void deliver(slot s, at::Tensor gradient);
  void accumulate(const at::Tensor& weight, at::Tensor gradient);
  void add(const at::Tensor& weight, at::Tensor gradient);

  memory_meter* meter_;
  at::Tensor anchor_;
  bool immediate_ = false;
  std::unordered_map<at::TensorImpl*, slot> slot_of_;
  std::vector<use_of_weight> slots_;
  std::vector<record> records_;
  std::size_t applied_ = 0;  ///< records before this one are folded
  std::int64_t work_ = 0;    ///< of all records of the W that runs in pieces
  std::int64_t work_applied_ = 0;
};

}  // namespace rrfp::compute
