/// A narrow interface to torch::optim, whose headers take half a minute to compile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/job/options.hpp>

namespace rrfp::compute {

/// One tensor of the optimizer state of a parameter.
struct optimizer_tensor {
  std::size_t parameter;  ///< index into the parameters
  std::string name;       ///< one of state_names()
  at::Tensor value;       ///< "step": an int64 scalar; any other: shaped like the parameter
};

/// Not thread-safe: one thread drives it.
class optimizer {
 public:
  optimizer() = default;
  optimizer(const optimizer&) = delete;
  optimizer& operator=(const optimizer&) = delete;
  virtual ~optimizer() = default;

  /// Takes one step with the current gradients of the parameters.
  virtual void step(double lr) = 0;
  /// Names of the state tensors of each parameter: "step", "exp_avg", "exp_avg_sq", or "momentum",
  /// or none.
  virtual std::vector<std::string> state_names() const = 0;
  /// Empty before the first step.
  virtual std::vector<optimizer_tensor> state() const = 0;
  /// Copies a state that state() returned. A parameter that is not in `state` restarts without
  /// state; for any other, all of state_names() must be present.
  virtual void set_state(const std::vector<optimizer_tensor>& state) = 0;
};

/// AdamW or SGD, by train.optimizer; weight decay applies to every parameter.
std::unique_ptr<optimizer> make_optimizer(const job::train_options& train,
                                          std::vector<at::Tensor> parameters);

}  // namespace rrfp::compute
