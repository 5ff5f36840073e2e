/// What one microbatch leaves for W on one chunk, and how it becomes gradients.
///
/// Operators name their weights in F (`use`), leave a record in B, and fold() turns the records
/// into gradients, in the order in which B left them. With `immediate` set a record is turned into
/// a gradient at once. Several records for one weight are summed before they are added to the
/// gradient, as autograd does, so a weight that is used twice keeps its bits. A weight that
/// ordinary operators use, too, is left to the graph: autograd alone knows in which order to sum.
///
/// Backward may run in another thread than forward (CUDA), so the stash travels with the graph;
/// only one thread uses it at a time.
#pragma once

#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <rrfp/compute/memory_meter.hpp>

namespace rrfp::compute {

class weight_stash final : public torch::CustomClassHolder {
 public:
  /// The place of a weight in this stash; `none` for one that gets no gradient.
  using slot = std::int64_t;
  static constexpr slot none = -1;

  /// `meter`, if any, is told of gradients that come to be: they outlive the microbatch.
  explicit weight_stash(memory_meter* meter = nullptr);

  /// A leaf that every operator takes as an input, so that the engine reaches operators whose other
  /// inputs need no gradient.
  const at::Tensor& anchor() const { return anchor_; }
  /// Once per operator and weight, in F.
  slot use(const at::Tensor& weight);
  /// Between F and B: its deferred operators give its gradient to the graph instead.
  void leave_to_graph(const at::Tensor& weight);
  const at::Tensor& weight(slot s) const { return slots_[s].weight; }

  void set_immediate(bool immediate) { immediate_ = immediate; }

  /// For the graph; undefined where W makes them or nobody needs them.
  struct gradients {
    at::Tensor weight;
    at::Tensor bias;
  };
  /// In B: dW = gy^T * x, db = sum of gy, over all rows.
  gradients linear(slot weight, slot bias, const at::Tensor& x, const at::Tensor& gy);
  /// In B: row i of dW is the sum of gy where indices are i.
  at::Tensor embedding(slot weight, const at::Tensor& indices, const at::Tensor& gy);
  /// After B: a gradient that ordinary autograd has computed.
  void ordinary(const at::Tensor& weight, at::Tensor gradient);

  /// Computes all that is left and adds it to the gradients of the weights.
  void fold();

 private:
  enum class kind : std::uint8_t { linear, embedding, ordinary };
  struct record {
    kind what;
    slot weight = none;
    slot bias = none;
    at::Tensor x;  // or indices; undefined for ordinary
    at::Tensor gy;
    at::Tensor leaf;  // ordinary only
  };
  struct use_of_weight {
    at::Tensor weight;
    int left = 0;  // records that are still to come
    at::Tensor sum;
    bool in_graph = false;
  };

  void take(record r);
  void compute(record r);
  bool is_in_graph(slot s) const { return s != none && slots_[s].in_graph; }
  at::Tensor of_weight(slot s, const at::Tensor& x, const at::Tensor& gy) const;
  at::Tensor of_bias(slot s, const at::Tensor& gy) const;
  at::Tensor of_rows(slot s, const at::Tensor& indices, const at::Tensor& gy) const;
  at::Tensor as_master(slot s, at::Tensor gradient) const;
  void deliver(slot s, at::Tensor gradient);
  void accumulate(const at::Tensor& weight, at::Tensor gradient);

  memory_meter* meter_;
  at::Tensor anchor_;
  bool immediate_ = false;
  std::unordered_map<at::TensorImpl*, slot> slot_of_;
  std::vector<use_of_weight> slots_;
  std::vector<record> records_;
};

}  // namespace rrfp::compute
