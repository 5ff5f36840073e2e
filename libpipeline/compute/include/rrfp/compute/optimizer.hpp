/// torch::optim behind one small door: its headers take half a minute to compile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/job/options.hpp>

namespace rrfp::compute {

/// State of the optimizer that belongs to one parameter.
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

  /// One step with the gradients that the parameters hold now.
  virtual void step(double lr) = 0;
  /// What it keeps for each parameter: "step", "exp_avg", "exp_avg_sq", or "momentum", or nothing.
  virtual std::vector<std::string> state_names() const = 0;
  /// Empty before the first step.
  virtual std::vector<optimizer_tensor> state() const = 0;
  /// Takes over copies of what state() gave; parameters not named start afresh,
  /// those named come with all of their state_names().
  virtual void set_state(const std::vector<optimizer_tensor>& state) = 0;
};

/// AdamW or SGD as train says; weight decay applies to every parameter.
std::unique_ptr<optimizer> make_optimizer(const job::train_options& train,
                                          std::vector<at::Tensor> parameters);

}  // namespace rrfp::compute
