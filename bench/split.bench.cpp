/// Measures what it costs to run the weight gradients of a module apart from its input gradients.
///
///   scripts/build release split_bench
///   build/release/bin/split_bench
///
/// Each module is a stage in the middle of a pipeline, on one core. A line gives the time of a
/// fused backward (BW), of the split one (B, W), their ratio, the share of the time that went to W,
/// and the memory that a microbatch holds after F and between B and W. Medians; fused and split
/// alternate. The first backwards find out whether the split pays (split_trial.hpp); they do not
/// count.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn.h>

#include <rrfp/torch/operators.hpp>
#include <rrfp/torch/stage_compute.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::compute;

using forward_function = std::function<at::Tensor(const at::Tensor&, weight_stash*)>;

class user_module final : public stage_module {
 public:
  user_module(const torch::nn::Module& parameters, forward_function f) : forward_(std::move(f)) {
    for (const auto& p : parameters.named_parameters()) parameters_.push_back({p.key(), p.value()});
  }
  std::span<const parameter> parameters() const override { return parameters_; }
  at::Tensor forward(const forward_input& in) override { return forward_(in.input, in.stash); }

 private:
  forward_function forward_;
  std::vector<parameter> parameters_;
};

struct no_data final : batch_source {
  microbatch load(step_id, microbatch_id) const override { return {}; }
  std::int64_t step_tokens(step_id) const override { return 1; }
};

double thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

void measure(const std::string& name, const torch::nn::Module& parameters, forward_function f,
             const std::vector<std::int64_t>& input) {
  constexpr std::uint32_t rounds = 31, trial = 20;
  const auto gradient = at::randn_like(f(at::randn(input), nullptr));
  std::vector<std::unique_ptr<stage_module>> chunks;
  chunks.push_back(std::make_unique<user_module>(parameters, std::move(f)));
  const auto stage = stage_compute::make({{3, 1, 1, placement::linear}, stage_id{1}, {}},
                                         std::move(chunks), std::make_shared<no_data>())
                         .value();
  const auto run = [&](task_kind kind, bool folds, at::Tensor with) {
    launch l;
    l.what = {kind, microbatch_id{0}, chunk_id{0}};
    l.folds = {microbatch_id{0}, folds ? 1U : 0U};
    const auto begin = thread_ms();
    stage->run(l, to_buffer(std::move(with)));
    return thread_ms() - begin;
  };
  std::vector<double> fused, b, w, both;
  std::int64_t after_f = 0, after_b = 0;
  for (std::uint32_t i = 0; i < trial + 2 * rounds; ++i) {
    stage->begin_step(step_id{i});
    const auto x = at::randn(input);
    run(task_kind::forward, false, x);
    after_f = stage->meter().current();
    if (i % 2 == 0) {
      const auto ms = run(task_kind::backward_weight, true, gradient.clone());
      if (i >= trial) fused.push_back(ms);
    } else {
      const auto of_b = run(task_kind::backward, false, gradient.clone());
      after_b = stage->meter().current();
      const auto of_w = run(task_kind::weight, true, at::Tensor{});
      if (i >= trial) {
        b.push_back(of_b);
        w.push_back(of_w);
        both.push_back(of_b + of_w);
      }
    }
    stage->apply(0, 0);
  }
  std::printf("%-28s %8.2f %8.2f %8.2f %8.3f %7.0f%% %10.1f %10.1f\n", name.c_str(), median(fused),
              median(b), median(w), median(both) / median(fused), 100 * median(w) / median(both),
              static_cast<double>(after_f) / 1e6, static_cast<double>(after_b) / 1e6);
}

template <class Module>
void measure(const std::string& name, Module module, const std::vector<std::int64_t>& input) {
  measure(
      name, *module,
      [module](const at::Tensor& x, weight_stash*) mutable { return module->forward(x); }, input);
}

struct lstm : torch::nn::Module {
  lstm() { register_module("inner", inner); }
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(inner->forward(x)); }
  torch::nn::LSTM inner{torch::nn::LSTMOptions(256, 256).num_layers(2)};
};

struct gru : torch::nn::Module {
  gru() { register_module("inner", inner); }
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(inner->forward(x)); }
  torch::nn::GRU inner{torch::nn::GRUOptions(256, 256).num_layers(2)};
};

struct own_mlp : torch::nn::Module {
  explicit own_mlp(std::int64_t width) {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(width, width)));
  }
  at::Tensor forward(at::Tensor x, weight_stash* stash) {
    for (auto& l : layers) x = at::gelu(linear(x, l->weight, l->bias, stash));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

torch::nn::Sequential mlp(std::int64_t width) {
  torch::nn::Sequential s;
  for (int i = 0; i < 4; ++i) {
    s->push_back(torch::nn::Linear(width, width));
    s->push_back(torch::nn::GELU());
  }
  return s;
}

torch::nn::Sequential cnn() {
  using namespace torch::nn;
  Sequential s;
  std::int64_t from = 32;
  for (const std::int64_t to : {64, 64, 128}) {
    s->push_back(Conv2d(Conv2dOptions(from, to, 3).padding(1).bias(false)));
    s->push_back(BatchNorm2d(to));
    s->push_back(ReLU());
    from = to;
  }
  return s;
}

}  // namespace

int main() {
  prepare_compute_thread();
  at::manual_seed(1);
  std::printf("%-28s %8s %8s %8s %8s %8s %10s %10s\n", "", "BW ms", "B ms", "W ms", "(B+W)/BW",
              "W share", "after F MB", "after B MB");
  const auto own = std::make_shared<own_mlp>(512);
  measure("MLP of rrfp::linear, 512", *own,
          [own](const at::Tensor& x, weight_stash* stash) { return own->forward(x, stash); },
          {256, 512});
  measure("MLP, 512", mlp(512), {256, 512});
  measure("MLP, 64", mlp(64), {64, 64});
  measure("CNN, 64 to 128 channels", cnn(), {8, 32, 28, 28});
  measure("TransformerEncoderLayer, 256",
          torch::nn::TransformerEncoderLayer(
              torch::nn::TransformerEncoderLayerOptions(256, 4).dim_feedforward(1024).dropout(0)),
          {128, 4, 256});
  measure("LSTM, 256", std::make_shared<lstm>(), {32, 16, 256});
  measure("GRU, 256", std::make_shared<gru>(), {32, 16, 256});
}
