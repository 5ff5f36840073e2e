/// The backward of a stage, and the order in which weight gradients are added.
#include <ctime>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <rrfp/torch/stage_compute.hpp>

#include "graph_split.hpp"

namespace rrfp::compute {

namespace {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

std::int64_t thread_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

at::Tensor stage_compute::run_backward(const launch& l, at::Tensor input) {
  auto& chunk = chunks_[l.what.chunk.value()];
  auto& mb = chunk.microbatches[l.what.mb.value()];
  // The host's time says nothing about the work of a device.
  const bool is_trial = !chunk.trial.is_decided() && config_.device.is_cpu();
  const auto begin = is_trial ? thread_time_ns() : 0;
  const bool ends = l.what.kind == task_kind::weight && mb.has_ordinary_matrix &&
                    l.folds.count == 1 && l.folds.first == l.what.mb;
  const auto is_split = mb.is_split;
  const auto before = mb.backward_ns;
  at::Tensor out;
  const in_flight* folded_inside = nullptr;
  switch (l.what.kind) {
    case task_kind::forward: RRFP_CHECK(false, "an F is no backward");
    case task_kind::backward: out = backward(l.what, std::move(input), false); break;
    case task_kind::backward_weight: {
      const bool is_its_turn = l.folds.count > 0 && l.folds.first == l.what.mb;
      out = backward(l.what, std::move(input), is_its_turn);
      if (is_its_turn) folded_inside = &mb;
      break;
    }
    case task_kind::weight:
      if (!l.piece.is_last()) mb.stash->fold(l.piece);
      break;
  }
  fold(chunk, l.folds, folded_inside);
  if (!is_trial) return out;
  const auto spent = before + thread_time_ns() - begin;
  if (ends)
    chunk.trial.add(is_split, spent);
  else
    mb.backward_ns = spent;
  return out;
}

at::Tensor stage_compute::backward(const task& t, at::Tensor gradient, bool fold_inside) {
  auto& chunk = chunks_[t.chunk.value()];
  auto& mb = chunk.microbatches[t.mb.value()];
  RRFP_CHECK(mb.stash && !mb.is_backward_done, "a B after its F, once");
  if (!is_training()) {
    // A dummy gradient tells the neighbour that it may release its input as well.
    mb.is_backward_done = true;
    return std::exchange(mb.input, {}).defined() ? at::zeros({1}, config_.device) : at::Tensor{};
  }
  if (config_.shape.is_last(chunk.vs)) {
    RRFP_CHECK(!gradient.defined(), "the last chunk takes its gradient from the loss");
    // d(mean over the tokens of the step) / d(sum over the tokens of this microbatch)
    gradient =
        at::full({}, scaler_.scale(), at::TensorOptions{mb.loss_type}.device(config_.device)) /
        static_cast<double>(step_tokens_);
  } else {
    RRFP_CHECK(gradient.defined(), "a B needs the gradient of its output");
    gradient = meter_.take_in(aligned(std::move(gradient)));
  }

  if (is_no_gradient(gradient))
    mb.root = {};
  else if (config_.recompute)
    recompute(chunk, mb, t);
  mb.stash->set_immediate(fold_inside);
  const auto* const given = memory_of(gradient);
  const auto of_input = run_graph(chunk, mb, std::move(gradient), fold_inside);
  mb.is_backward_done = true;
  if (!mb.input.defined()) return {};
  auto out = of_input.defined() ? owned(of_input.detach().contiguous(), given)
                                : no_gradient(config_.device);
  mb.input.reset();
  meter_.hand_out(out);
  return out;
}

at::Tensor stage_compute::run_graph(chunk_state& chunk, in_flight& mb, at::Tensor gradient,
                                    bool fold_inside) const {
  using torch::autograd::impl::gradient_edge;
  if (!mb.root.is_valid()) return {};
  edge_list wanted{gradient_edge(mb.stash->anchor())};
  if (mb.input.defined()) wanted.push_back(gradient_edge(mb.input));
  const auto before_leaves = wanted.size();
  const bool is_apart = !fold_inside && mb.has_ordinary_matrix;
  mb.is_split = is_apart && (!config_.device.is_cpu() || chunk.trial.splits_next());
  const auto functions = config_.group ? functions_in_w::none : functions_in_w::all;
  auto split = mb.is_split ? graph_split(mb.root, wanted, functions) : graph_split{};
  std::vector<at::Tensor> leaves;
  for (const auto& leaf : chunk.trained) {
    if (split.is_left(leaf)) continue;
    leaves.push_back(leaf);
    wanted.push_back(gradient_edge(leaf));
  }
  const auto before_captures = wanted.size();
  wanted.insert(wanted.end(), split.captures().begin(), split.captures().end());

  edge_list roots{std::exchange(mb.root, {})};
  variable_list seeds{std::move(gradient)};
  variable_list gradients(wanted.size());
  if (split.is_whole()) {
    gradients.back() = std::move(seeds[0]);
  } else {
    gradients = torch::autograd::Engine::get_default_engine().execute(
        roots, seeds, /*keep_graph=*/!split.is_empty(), /*create_graph=*/false,
        /*accumulate_grad=*/false, wanted);
  }
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (auto& g = gradients[before_leaves + i]; g.defined())
      mb.stash->ordinary(leaves[i], std::move(g));
  const auto captured = gradients.begin() + static_cast<std::ptrdiff_t>(before_captures);
  for (auto& part : split.detach({captured, gradients.end()})) mb.stash->postpone(std::move(part));
  return mb.input.defined() ? gradients[1] : at::Tensor{};
}

void stage_compute::fold(chunk_state& chunk, fold_range range, const in_flight* folded_inside) {
  if (range.count == 0) return;
  RRFP_CHECK(range.first.value() == chunk.folded, "folds in the order of the microbatches");
  RRFP_CHECK(range.count <= chunk.microbatches.size() - chunk.folded, "a fold beyond the step");
  for (std::uint32_t i = 0; i < range.count; ++i) {
    auto& mb = chunk.microbatches[chunk.folded];
    RRFP_CHECK(mb.is_backward_done, "a fold of a microbatch whose B has not run");
    RRFP_CHECK(folded_inside == nullptr || i > 0 || folded_inside == &mb, "a fold of another mb");
    // After a fused backward: only weights whose other uses were in dead branches.
    mb.stash->fold();
    mb = {};
    ++chunk.folded;
    count_in_part(chunk);
  }
  // A parameter that is cut over the ranks is one parameter.
  if (shares_.are_own() && chunk.folded == chunk.microbatches.size() && is_training() &&
      is_parallel(config_.group))
    agree_on_gradients(*config_.group, chunk.trained);
}

}  // namespace rrfp::compute
