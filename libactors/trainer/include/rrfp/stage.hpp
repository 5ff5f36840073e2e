/// One part of a model of one's own, as a pipeline takes it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp {

/// Which part of the model is asked for.
struct stage_place {
  std::uint32_t stage = 0;  ///< of the pipeline
  std::uint32_t chunk = 0;  ///< of the stage
  std::uint32_t index = 0;  ///< along the model
  std::uint32_t count = 1;  ///< parts of the model
  /// The tensor-parallel ranks of the stage; null: it has one.
  std::shared_ptr<compute::rank_group> group;

  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
};

/// Its parameters and what it computes.
///
/// What forward() gives must follow from its input and the parameters alone: buffers that it
/// changes (as batch norm does) and generators that it draws from would see the microbatches in the
/// order in which they happen to run. Buffers are not saved either.
struct stage {
  /// Float leaves under names that no other part of the model has; they name it in checkpoints, so
  /// one that does not depend on the number of stages lets a training go on with another. All that
  /// forward() uses and that requires a gradient; whether one does must not change after open().
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  /// From the batch's rows (first part) or the output of the part before to the input of the next
  /// one, or to what the loss takes. Float, any shape; may differ from one microbatch to the next.
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// Told before a step whether something is to be learnt. May be empty.
  std::function<void(bool training)> set_training;
};

namespace detail {

template <class Module>
bool is_null(const Module& module) {
  if constexpr (requires { module.is_empty(); })
    return module.is_empty();
  else
    return module == nullptr;
}

}  // namespace detail

/// A module holder or a shared pointer whose forward takes one tensor and returns one.
template <class Module>
concept tensor_module = requires(Module& module, const at::Tensor& x) {
  { module->forward(x) } -> std::convertible_to<at::Tensor>;
};

/// A torch::nn module (a module holder or a shared pointer) with forward(Tensor) -> Tensor. Its
/// parameters are called `prefix` + their names in it.
template <class Module>
stage stage_of(Module module, const std::string& prefix = {}) {
  static_assert(tensor_module<Module>,
                "stage_of() expects a module with forward(Tensor) -> Tensor; fill in a rrfp::stage "
                "with a forward of your own where a module takes or returns something else");
  stage made;
  if constexpr (tensor_module<Module>) {
    if (detail::is_null(module)) return made;
    for (const auto& p : module->named_parameters())
      made.parameters.emplace_back(prefix + p.key(), p.value());
    made.forward = [module](const at::Tensor& x) mutable { return module->forward(x); };
    made.set_training = [module](bool training) mutable { module->train(training); };
  }
  return made;
}

/// A TorchScript module that Python has saved (torch.jit.save), one file a part. Error: names the
/// file.
result<stage> script_stage(const std::string& path, const std::string& prefix = {});

/// As torch::nn::functional::linear. In forward() of a stage its weight gradient is put off to a
/// task of its own, W, that fills gaps; anywhere else it is the ordinary operator. The same bits.
/// A weight or bias that is no leaf, or has hooks, or that other operators use too gets its
/// gradient in B, as with the ordinary operator.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
/// As torch::nn::functional::embedding, likewise.
at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight);

}  // namespace rrfp
