#include <rrfp/torch/optimizer.hpp>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string_view>
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

  /// The scalar `step` and all of `like_parameter`, for each parameter that has state.
  status check(const std::vector<optimizer_tensor>& state, bool has_step,
               std::initializer_list<std::string_view> like_parameter) const {
    std::map<std::size_t, std::size_t> found;
    for (const auto& t : state) {
      const bool is_step = has_step && t.name == "step";
      if (!is_step && std::ranges::find(like_parameter, t.name) == like_parameter.end()) continue;
      const auto& wanted = is_step ? at::IntArrayRef{} : parameters_[t.parameter].sizes();
      if (!t.value.defined() || !t.value.sizes().equals(wanted))
        return error{c10::str("expected '", t.name, "' of the shape ", wanted, ", got ",
                              t.value.defined() ? c10::str(t.value.sizes()) : "none")};
      ++found[t.parameter];
    }
    for (const auto& [parameter, count] : found)
      if (count != like_parameter.size() + has_step)
        return error{"expected step, exp_avg and exp_avg_sq of a parameter, got " +
                     std::to_string(count) + " of them"};
    return success();
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

  status fits(const std::vector<optimizer_tensor>& state) const override {
    return check(state, true, {"exp_avg", "exp_avg_sq"});
  }

  status set_state(const std::vector<optimizer_tensor>& state) override {
    if (auto good = fits(state); !good) return good;
    torch_.state().clear();
    for (const auto& t : state) {
      if (t.name == "step") make(t.parameter).step(t.value.item<std::int64_t>());
      if (t.name == "exp_avg") make(t.parameter).exp_avg(copy_for(t));
      if (t.name == "exp_avg_sq") make(t.parameter).exp_avg_sq(copy_for(t));
    }
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

  status fits(const std::vector<optimizer_tensor>& state) const override {
    return check(state, false, {"momentum"});
  }

  status set_state(const std::vector<optimizer_tensor>& state) override {
    if (auto good = fits(state); !good) return good;
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
