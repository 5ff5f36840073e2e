/// A narrow interface to torch::optim, whose headers take half a minute to compile.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/result.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/torch/stage_module.hpp>

namespace rrfp::compute {

/// One tensor of the optimizer state of a parameter.
struct optimizer_tensor {
  std::size_t parameter;  ///< index into the parameters
  std::string name;       ///< without a dot: "step", "exp_avg", "momentum"
  /// A scalar is the same on all tensor-parallel ranks. Any other of a parameter that is cut over
  /// the ranks is shaped like this rank's part.
  at::Tensor value;
};

/// Not thread-safe: one thread drives it.
class optimizer {
 public:
  optimizer() = default;
  optimizer(const optimizer&) = delete;
  optimizer& operator=(const optimizer&) = delete;
  virtual ~optimizer() = default;

  /// Takes one step with the current gradients of the parameters. A parameter whose gradient is
  /// undefined (it is frozen, or the loss does not depend on it) and its state do not change.
  virtual void step(double lr) = 0;
  /// Empty before the first step.
  virtual std::vector<optimizer_tensor> state() const = 0;
  /// Copies a state that state() returned, in any order and with any device. A parameter that is
  /// not in `state` restarts without state. Error: a parameter lacks some of its state, or a tensor
  /// has another shape; then nothing has changed.
  virtual status set_state(const std::vector<optimizer_tensor>& state) = 0;
  /// The error that set_state() would return, before any stage sets its state.
  virtual status fits(const std::vector<optimizer_tensor>&) const { return success(); }
};

/// Makes the optimizer of all parameters of a stage, frozen ones and copies of tied ones included.
using optimizer_factory =
    std::function<std::unique_ptr<optimizer>(const std::vector<parameter>& parameters)>;

/// AdamW or SGD, by train.optimizer; weight decay applies to every parameter.
std::unique_ptr<optimizer> make_optimizer(const job::train_options& train,
                                          std::vector<at::Tensor> parameters);

}  // namespace rrfp::compute
