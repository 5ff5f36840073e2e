/// One part of a user-defined model, as rrfp::pipeline expects it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/result.hpp>
#include <rrfp/pack.hpp>

namespace rrfp::compute {

class rank_group;

}  // namespace rrfp::compute

namespace rrfp {

/// The part of the model to make.
struct stage_place {
  std::uint32_t stage = 0;  ///< position in the pipeline
  std::uint32_t chunk = 0;  ///< position on the stage
  std::uint32_t index = 0;  ///< position along the model
  std::uint32_t count = 1;  ///< number of parts of the model
  /// The tensor-parallel ranks of the stage; null if it has one rank.
  std::shared_ptr<compute::rank_group> group;

  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
};

/// The parameters of a part and its computation.
///
/// The output of forward() must depend only on its input, the parameters and numbers from
/// libtorch's generator (dropout), which is keyed by step, microbatch and part
/// (rrfp/keyed_generator.hpp): forwards of one process that draw run one at a time. Buffers that
/// forward() changes (as batch norm does) and other generators depend on the order in which the
/// microbatches run; with forwards_in_order that is the order of their numbers.
struct stage {
  /// All leaves that forward() uses and that ever require a gradient. They must be float, on the
  /// CPU, and have names that no other part of the model has. Checkpoints use the
  /// names: if they do not depend on the number of stages, training can resume with another number.
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  /// Tensors of the state that are not trained (batch norm's statistics). Checkpoints have them.
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  /// Whether forward() changes buffers in training, in place: its stage then runs the forwards in
  /// the order of the microbatches, and backwards in any order. If it is false and forward()
  /// changes one, the step fails (changes through data() are detected only in the first forward).
  bool forwards_in_order = false;
  /// Computes the input of the next part, or of the loss, from the rows of the batch (first part)
  /// or the output of the previous part. The output is float; its shape may differ between
  /// microbatches.
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// Called before a pass when training changes to evaluation or back. May be empty.
  std::function<void(bool training)> set_training;
};

namespace detail {

void add_buffer(stage& to, std::string name, const at::Tensor& value);

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

/// The same for lists of tensors of any type: what a part returns, the next one takes.
template <class Module>
concept tensors_module = requires(Module& module, std::vector<at::Tensor> x) {
  { module->forward(std::move(x)) } -> std::convertible_to<std::vector<at::Tensor>>;
};

/// A torch::nn module (a module holder or a shared pointer) with forward(Tensor) -> Tensor, or from
/// std::vector<Tensor> to std::vector<Tensor>: then the first part of the model gets a list of one
/// tensor, the inputs, and the last one returns a list of one tensor, for the loss. For a skip
/// connection over stages, the parts in between pass a tensor on. A null module gives a stage
/// without forward, which pipeline::open() refuses. Its parameters and buffers are called
/// `prefix` + their names in it; with a buffer "running_mean" (batch norm) forwards run in order.
template <class Module>
stage stage_of(Module module, const std::string& prefix = {}) {
  static_assert(tensor_module<Module> || tensors_module<Module>,
                "stage_of() expects a module with forward(Tensor) -> Tensor or "
                "forward(std::vector<Tensor>) -> std::vector<Tensor>; fill in a rrfp::stage with a "
                "forward of your own where a module takes or returns something else");
  stage made;
  if constexpr (tensor_module<Module> || tensors_module<Module>) {
    if (detail::is_null(module)) return made;
    for (const auto& p : module->named_parameters())
      made.parameters.emplace_back(prefix + p.key(), p.value());
    if constexpr (requires { module->named_buffers(); })
      for (const auto& b : module->named_buffers())
        detail::add_buffer(made, prefix + b.key(), b.value());
    made.forward = [module](const at::Tensor& x) mutable -> at::Tensor {
      if constexpr (tensor_module<Module>)
        return module->forward(x);
      else
        return pack(module->forward(unpack(x).tensors));
    };
    made.set_training = [module](bool training) mutable { module->train(training); };
  }
  return made;
}

/// A TorchScript module saved by Python (torch.jit.save), one file per part. An error names the
/// file.
result<stage> script_stage(const std::string& path, const std::string& prefix = {});

/// Like torch::nn::functional::linear, with the same bits. In forward() of a stage its weight
/// gradient runs in W, the separate task of weight gradients, and costs nothing extra;
/// ordinary operators are cut out of the graph (docs/embedding.md). Elsewhere it is the ordinary
/// operator. A weight or bias that other operators use too gets its gradient in B; one that is not
/// a leaf or has hooks is treated as by the ordinary operator.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
/// Like torch::nn::functional::embedding, with its weight gradient as in linear().
at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight);

}  // namespace rrfp
