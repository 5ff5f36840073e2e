#include "weight_stash.hpp"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "deferred.hpp"

namespace rrfp::compute {

weight_stash::weight_stash(memory_meter* meter)
    : meter_(meter), anchor_(at::empty({0}).requires_grad_()) {}

weight_stash::slot weight_stash::use(const at::Tensor& weight) {
  if (!weight.defined() || !weight.requires_grad()) return none;
  const auto [it, is_new] =
      slot_of_.try_emplace(weight.unsafeGetTensorImpl(), static_cast<slot>(slots_.size()));
  if (is_new) slots_.push_back({weight, 0, {}, false});
  ++slots_[it->second].left;
  return it->second;
}

void weight_stash::leave_to_graph(const at::Tensor& weight) {
  if (const auto at = slot_of_.find(weight.unsafeGetTensorImpl()); at != slot_of_.end())
    slots_[at->second].in_graph = true;
}

weight_stash::gradients weight_stash::linear(slot weight, slot bias, const at::Tensor& x,
                                             const at::Tensor& gy) {
  gradients now;
  if (is_in_graph(weight)) now.weight = of_weight(std::exchange(weight, none), x, gy);
  if (is_in_graph(bias)) now.bias = of_bias(std::exchange(bias, none), gy);
  if (weight == none && bias == none) return now;
  // Detached: an input with its graph would form a reference cycle with this stash.
  add_record({kind::linear,
              weight,
              bias,
              weight == none ? at::Tensor() : x.detach(),
              gy.detach(),
              {},
              {}});
  return now;
}

at::Tensor weight_stash::embedding(slot weight, const at::Tensor& indices, const at::Tensor& gy) {
  if (weight == none) return {};
  if (is_in_graph(weight)) return of_rows(weight, indices, gy);
  add_record({kind::embedding, weight, none, indices, gy.detach(), {}, {}});
  return {};
}

void weight_stash::ordinary(const at::Tensor& weight, at::Tensor gradient) {
  add_record({kind::ordinary, none, none, {}, std::move(gradient), weight, {}});
}

void weight_stash::postpone(weight_graph graph) {
  add_record({kind::graph, none, none, {}, {}, {}, std::move(graph)});
}

void weight_stash::fold() {
  const at::NoGradGuard no_grad;
  // Moved one by one, so the memory of a record is freed before the next one is computed.
  for (; applied_ < records_.size(); ++applied_) apply_record(std::move(records_[applied_]));
  clear();
  for (auto& s : slots_) {
    if (s.sum.defined()) accumulate(s.weight, std::move(s.sum));
    s.sum.reset();
  }
}

void weight_stash::fold(const task_piece& piece) {
  const at::NoGradGuard no_grad;
  if (piece.number == 0) {
    work_ = work_applied_ = 0;
    for (const auto& r : records_) work_ += work_of(r);
  }
  const auto share = work_ * (piece.number + 1) / piece.count;
  for (; applied_ < records_.size(); ++applied_) {
    auto& next = records_[applied_];
    const auto work = work_of(next);
    // A record that the share cuts goes where its larger part lies.
    if (work_applied_ + work / 2 > share) return;
    work_applied_ += work;
    apply_record(std::move(next));
  }
}

void weight_stash::clear() {
  records_.clear();
  applied_ = 0;
}

/// In multiplications, roughly.
std::int64_t weight_stash::work_of(const record& r) {
  switch (r.type) {
    case kind::linear: return r.x.numel() * r.gy.size(-1);
    case kind::embedding:
    case kind::ordinary: return r.gy.numel();
    case kind::graph: return r.graph.work();
  }
  return 0;
}

void weight_stash::add_record(record r) {
  if (immediate_) {
    const at::NoGradGuard no_grad;
    apply_record(std::move(r));
  } else {
    records_.push_back(std::move(r));
  }
}

void weight_stash::apply_record(record r) {
  switch (r.type) {
    case kind::linear:
      if (r.weight != none) deliver(r.weight, of_weight(r.weight, r.x, r.gy));
      if (r.bias != none) deliver(r.bias, of_bias(r.bias, r.gy));
      return;
    case kind::embedding: return deliver(r.weight, of_rows(r.weight, r.x, r.gy));
    case kind::ordinary: accumulate(r.leaf, std::move(r.gy)); return;
    case kind::graph: {
      auto gradients = r.graph.run();
      for (std::size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i].defined()) accumulate(r.graph.leaves[i], std::move(gradients[i]));
      return;
    }
  }
}

// The same operations on the same layouts as in the derivatives of at::linear and at::embedding.
// Another formula for the same gradient (x^T * gy, transposed) differs in the last bits.
at::Tensor weight_stash::of_weight(slot s, const at::Tensor& x, const at::Tensor& gy) const {
  const auto rows = gy.reshape({-1, gy.size(-1)});
  return as_master(s, rows.t().mm(x.reshape({-1, x.size(-1)})));
}

at::Tensor weight_stash::of_bias(slot s, const at::Tensor& gy) const {
  return as_master(s, gy.reshape({-1, gy.size(-1)}).sum(0));
}

at::Tensor weight_stash::of_rows(slot s, const at::Tensor& indices, const at::Tensor& gy) const {
  return at::embedding_dense_backward(gy, indices, slots_[s].weight.size(0), /*padding_idx=*/-1,
                                      /*scale_grad_by_freq=*/false);
}

/// Gradients are summed in the type of the weights, not in the compute type.
at::Tensor weight_stash::as_master(slot s, at::Tensor gradient) const {
  return gradient.to(slots_[s].weight.scalar_type());
}

void weight_stash::deliver(slot s, at::Tensor gradient) {
  auto& use = slots_[s];
  use.sum = use.sum.defined() ? use.sum + gradient : std::move(gradient);
  // A use without influence on the loss adds no record; fold() then delivers the sum.
  if (--use.left == 0) accumulate(use.weight, std::exchange(use.sum, at::Tensor()));
}

void weight_stash::add(const at::Tensor& weight, at::Tensor gradient) {
  TORCH_CHECK(gradient.layout() == at::kStrided, "the gradient of a parameter of ", weight.sizes(),
              " has the layout ", gradient.layout(), ": expected a dense one");
  auto& total = weight.mutable_grad();
  if (total.defined()) {
    total.add_(gradient);
    return;
  }
  total =
      is_sole_owner(gradient) ? std::move(gradient) : gradient.clone(at::MemoryFormat::Contiguous);
  if (meter_ != nullptr) meter_->hand_out(total);
}

/// Calls the hooks that the engine would call where it adds a gradient.
void weight_stash::accumulate(const at::Tensor& weight, at::Tensor gradient) {
  const auto end = torch::autograd::impl::try_get_grad_accumulator(weight);
  const auto& after_add = torch::autograd::impl::post_acc_grad_hooks(weight);
  const bool has_own = end != nullptr && !(end->pre_hooks().empty() && end->post_hooks().empty());
  if (after_add == nullptr && !has_own) return add(weight, std::move(gradient));
  const auto before = weight.detach().clone();
  torch::autograd::variable_list given{std::move(gradient)};
  if (has_own)
    for (const auto& hook : end->pre_hooks()) given = (*hook)(given);
  if (given[0].defined()) add(weight, given[0]);
  if (after_add != nullptr) (*after_add)(weight);
  if (has_own)
    for (const auto& hook : end->post_hooks()) (*hook)({}, given);
  TORCH_CHECK(before.equal(weight), "a hook changes a parameter of ", weight.sizes(),
              " when a gradient is added, while other microbatches use it: expected the pipeline's "
              "optimizer to change it, at the end of the step");
}

}  // namespace rrfp::compute
