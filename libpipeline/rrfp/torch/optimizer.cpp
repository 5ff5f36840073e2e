#include <rrfp/torch/optimizer.hpp>

#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace rrfp::compute {

namespace {

template <class Torch, class State>
class torch_optimizer : public optimizer {
 public:
  template <class Options>
  torch_optimizer(std::vector<at::Tensor> parameters, const Options& options)
      : parameters_(parameters), torch_(std::move(parameters), options) {}

  void step(double lr) override {
    for (auto& group : torch_.param_groups()) group.options().set_lr(lr);
    torch_.step();
  }

 protected:
  const State* find(std::size_t parameter) const {
    const auto it = torch_.state().find(parameters_[parameter].unsafeGetTensorImpl());
    return it == torch_.state().end() ? nullptr : static_cast<const State*>(it->second.get());
  }

  State& make(std::size_t parameter) {
    auto& place = torch_.state()[parameters_[parameter].unsafeGetTensorImpl()];
    if (place == nullptr) place = std::make_unique<State>();
    return static_cast<State&>(*place);
  }

  /// A copy on the device of the parameter.
  at::Tensor copy_for(const optimizer_tensor& t) const {
    return t.value.to(parameters_[t.parameter].device(), /*non_blocking=*/false, /*copy=*/true);
  }

  std::vector<at::Tensor> parameters_;
  Torch torch_;
};

class adamw final : public torch_optimizer<torch::optim::AdamW, torch::optim::AdamWParamState> {
 public:
  using torch_optimizer::torch_optimizer;

  std::vector<optimizer_tensor> state() const override {
    std::vector<optimizer_tensor> all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto* s = find(i);
      if (s == nullptr) continue;
      all.push_back({i, "step", at::scalar_tensor(s->step(), at::kLong)});
      all.push_back({i, "exp_avg", s->exp_avg()});
      all.push_back({i, "exp_avg_sq", s->exp_avg_sq()});
    }
    return all;
  }

  status set_state(const std::vector<optimizer_tensor>& state) override {
    torch_.state().clear();
    std::vector<int> found(parameters_.size());
    for (const auto& t : state) {
      if (t.name != "step" && t.name != "exp_avg" && t.name != "exp_avg_sq") continue;
      auto& s = make(t.parameter);
      if (t.name == "step") s.step(t.value.item<std::int64_t>());
      if (t.name == "exp_avg") s.exp_avg(copy_for(t));
      if (t.name == "exp_avg_sq") s.exp_avg_sq(copy_for(t));
      ++found[t.parameter];
    }
    for (const auto count : found)
      if (count != 0 && count != 3)
        return error{"expected step, exp_avg and exp_avg_sq of a parameter, got " +
                     std::to_string(count) + " of them"};
    return success();
  }
};

class sgd final : public torch_optimizer<torch::optim::SGD, torch::optim::SGDParamState> {
 public:
  using torch_optimizer::torch_optimizer;

  std::vector<optimizer_tensor> state() const override {
    std::vector<optimizer_tensor> all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto* s = find(i);
      if (s != nullptr && s->momentum_buffer().defined()) {
        all.push_back({i, "momentum", s->momentum_buffer()});
      }
    }
    return all;
  }

  status set_state(const std::vector<optimizer_tensor>& state) override {
    torch_.state().clear();
    for (const auto& t : state)
      if (t.name == "momentum") make(t.parameter).momentum_buffer(copy_for(t));
    return success();
  }
};

}  // namespace

std::unique_ptr<optimizer> make_optimizer(const job::train_options& train,
                                          std::vector<at::Tensor> parameters) {
  switch (train.optimizer) {
    case job::optimizer_kind::adamw:
      return std::make_unique<adamw>(std::move(parameters), torch::optim::AdamWOptions(train.lr)
                                                                .betas({train.beta1, train.beta2})
                                                                .eps(train.epsilon)
                                                                .weight_decay(train.weight_decay));
    case job::optimizer_kind::sgd:
      return std::make_unique<sgd>(std::move(parameters), torch::optim::SGDOptions(train.lr)
                                                              .momentum(train.momentum)
                                                              .weight_decay(train.weight_decay));
  }
  return nullptr;
}

}  // namespace rrfp::compute
