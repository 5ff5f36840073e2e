/// W computes the weight gradients of any module, with the bits of one backward.
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn.h>
#include <catch2/catch.hpp>

#include <rrfp/torch/graph_split.hpp>
#include <rrfp/torch/operators.hpp>
#include <rrfp/torch/stage_compute.hpp>
#include <rrfp/torch/weight_stash.hpp>

#include "small_model.hpp"

namespace rrfp::compute::test::graph_splits {

namespace {

using torch::autograd::impl::gradient_edge;
using named_weights = std::vector<std::pair<std::string, at::Tensor>>;

constexpr std::uint32_t microbatches = 4;

/// A user's part of a model.
struct part {
  std::string name;
  named_weights weights;
  std::function<at::Tensor(const at::Tensor& x, weight_stash* stash)> forward;
  std::vector<std::int64_t> input;
  /// The weights whose gradients W computes.
  std::set<std::string> left;
};

class part_module final : public stage_module {
 public:
  explicit part_module(part p) : part_(std::move(p)) {
    for (const auto& [name, value] : part_.weights) parameters_.push_back({name, value});
  }
  std::span<const parameter> parameters() const override { return parameters_; }
  at::Tensor forward(const forward_input& in) override {
    at::manual_seed(in.mb.value());
    return part_.forward(in.input, in.stash);
  }

 private:
  part part_;
  std::vector<parameter> parameters_;
};

at::Tensor wave(at::IntArrayRef shape, double phase) {
  const auto count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kFloat) * 0.37 + phase).view(shape);
}

at::Tensor weight(at::IntArrayRef shape, double phase) {
  return wave(shape, phase).mul_(0.3).requires_grad_();
}

template <class Module>
part part_of(const std::string& name, Module module, std::vector<std::int64_t> input,
             std::set<std::string> left) {
  named_weights weights;
  for (const auto& p : module->named_parameters()) weights.emplace_back(p.key(), p.value());
  return {name, weights,
          [module](const at::Tensor& x, weight_stash*) mutable { return module->forward(x); },
          std::move(input), std::move(left)};
}

struct lstm_part : torch::nn::Module {
  explicit lstm_part(int layers)
      : inner(register_module("lstm",
                              torch::nn::LSTM(torch::nn::LSTMOptions(8, 8).num_layers(layers)))) {}
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(inner->forward(x)); }
  torch::nn::LSTM inner;
};

struct gru_part : torch::nn::Module {
  gru_part()
      : inner(register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(8, 8).num_layers(2)))) {}
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(inner->forward(x)); }
  torch::nn::GRU inner;
};

struct attention_part : torch::nn::Module {
  attention_part()
      : inner(register_module("attention", torch::nn::MultiheadAttention(
                                               torch::nn::MultiheadAttentionOptions(16, 2)))) {}
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(inner->forward(x, x, x)); }
  torch::nn::MultiheadAttention inner;
};

/// Counts how often its backward runs.
int squares_run = 0;
struct users_square : torch::autograd::Function<users_square> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return x * x * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list g) {
    ++squares_run;
    const auto saved = ctx->get_saved_variables();
    return {g[0] * 2 * saved[0] * saved[1], (g[0] * saved[0] * saved[0]).sum(0, true)};
  }
};

std::vector<part> all_parts() {
  namespace nn = torch::nn;
  at::manual_seed(5);
  const auto w = [](double phase) { return weight({16, 16}, phase); };
  std::vector<part> all;
  all.push_back(part_of("an MLP",
                        nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16),
                                       nn::ReLU(), nn::Linear(16, 8)),
                        {5, 16},
                        {"0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"}));
  all.push_back(part_of("an MLP with a sequence",
                        nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16)),
                        {3, 5, 16}, {"0.weight", "2.weight"}));
  all.push_back(part_of("a CNN",
                        nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)),
                                       nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2),
                                       nn::Conv2d(8, 4, 3), nn::Flatten(), nn::Linear(16, 5)),
                        {4, 3, 8, 8},
                        {"0.weight", "0.bias", "4.weight", "4.bias", "6.weight", "6.bias"}));
  all.push_back(part_of("an LSTM", std::make_shared<lstm_part>(2), {6, 3, 8}, {}));
  all.push_back(
      part_of("a GRU", std::make_shared<gru_part>(), {6, 3, 8},
              {"gru.weight_ih_l0", "gru.weight_hh_l0", "gru.bias_ih_l0", "gru.bias_hh_l0",
               "gru.weight_ih_l1", "gru.weight_hh_l1", "gru.bias_ih_l1", "gru.bias_hh_l1"}));
  all.push_back(part_of("attention", std::make_shared<attention_part>(), {6, 3, 16},
                        {"attention.in_proj_weight", "attention.out_proj.weight"}));
  all.push_back(part_of(
      "a transformer layer",
      nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32)),
      {6, 3, 16},
      {"linear1.weight", "linear2.weight", "self_attn.in_proj_weight",
       "self_attn.out_proj.weight"}));
  const auto of_weights = [&](const std::string& name, std::set<std::string> left, auto f) {
    named_weights weights{{"a", w(1)},
                          {"b", w(2)},
                          {"c", weight({16}, 3)},
                          {"low", weight({16, 4}, 4)},
                          {"high", weight({4, 16}, 5)}};
    all.push_back({name,
                   weights,
                   [=](const at::Tensor& x, weight_stash* stash) {
                     std::vector<at::Tensor> t;
                     for (const auto& p : weights) t.push_back(p.second);
                     return f(x, t, stash);
                   },
                   {5, 16},
                   std::move(left)});
  };
  using list = const std::vector<at::Tensor>&;
  of_weights("dropout, views and operators in place", {"a", "b"},
             [](const at::Tensor& x, list t, weight_stash*) {
               auto y = at::dropout(x.mm(t[0]), 0.3, true);
               y = y.view({16, 5}).t().tanh().mm(t[1]);
               y.narrow(1, 0, 8).mul_(2);
               y.add_(t[2]).relu_();
               return y * 1.5;
             });
  of_weights(
      "a module used three times", {"a", "c"}, [](const at::Tensor& x, list t, weight_stash*) {
        return at::tanh(at::linear(
            at::tanh(at::linear(at::tanh(at::linear(x, t[0], t[2])), t[0], t[2])), t[0], t[2]));
      });
  of_weights("uses of all kinds", {"a", "b", "c"}, [](const at::Tensor& x, list t, weight_stash*) {
    const auto own = at::tanh(t[0].mm(t[1]) + t[0]);
    auto y = x.mm(own).mm(t[0]) + at::addmm(t[2], x, t[0]);
    y = at::addmm(t[2], at::tanh(y), t[0].t()) + at::addmm(t[2], y, own);
    return y.mm(t[1]) + x.mm(own.t());
  });
  of_weights("a frozen weight and one that is not used", {"a"},
             [](const at::Tensor& x, list t, weight_stash*) {
               return at::tanh(x.mm(t[0])).mm(t[1].detach());
             });
  of_weights("low-rank adapters", {"a", "low", "high"},
             [](const at::Tensor& x, list t, weight_stash*) {
               return at::tanh(at::linear(x, t[0] + t[3].mm(t[4])));
             });
  of_weights("a cast", {"a", "b"}, [](const at::Tensor& x, list t, weight_stash*) {
    const auto y = x.to(at::kBFloat16).mm(t[0].to(at::kBFloat16));
    return at::tanh(y).mm(t[1].to(at::kBFloat16)).to(at::kFloat);
  });
  of_weights("rows of a table", {"a", "b"}, [](const at::Tensor& x, list t, weight_stash*) {
    const auto ids = x.detach().abs().mul(5).to(at::kLong).clamp(0, 15).select(1, 0);
    return at::tanh(x + at::embedding(t[0], ids)).mm(t[1]);
  });
  of_weights("an output that does not depend on the input", {"a", "b", "c"},
             [](const at::Tensor& x, list t, weight_stash*) {
               return at::tanh(t[0].mm(t[1]) * t[2]).narrow(0, 0, x.size(0));
             });
  of_weights("vectors alone", {},
             [](const at::Tensor& x, list t, weight_stash*) { return at::tanh(x * t[2] + t[2]); });
  of_weights("an autograd::Function on the chain", {"b"},
             [](const at::Tensor& x, list t, weight_stash*) {
               const auto y = users_square::apply(x, t[0].narrow(0, 0, 1));
               return at::tanh(y.mm(t[1]));
             });
  of_weights("an autograd::Function in a branch", {"a", "b"},
             [](const at::Tensor& x, list t, weight_stash*) {
               return at::tanh(x.mm(users_square::apply(t[0], t[1].narrow(0, 0, 1))));
             });
  of_weights("own operators beside others", {"a"},
             [](const at::Tensor& x, list t, weight_stash* stash) {
               auto y = at::tanh(x.mm(t[0]));
               y = at::tanh(linear(y, t[1], t[2], stash));
               return linear(y, t[4], {}, stash) * 2;
             });
  of_weights("own operators and others with one weight", {"a"},
             [](const at::Tensor& x, list t, weight_stash* stash) {
               auto y = at::tanh(linear(x, t[1], t[2], stash)).mm(t[1]);
               return at::tanh(linear(y, t[1], t[2], stash)).mm(t[0]);
             });
  of_weights("several outputs of a node", {"a", "b", "c"},
             [](const at::Tensor& x, list t, weight_stash*) {
               const auto halves = at::addmm(t[2], x, t[0]).chunk(2, 1);
               return at::cat({halves[1].tanh(), halves[0]}, 1).mm(t[1]);
             });
  of_weights("a branch without influence", {"a", "b"},
             [](const at::Tensor& x, list t, weight_stash*) {
               const auto y = x.mm(t[0]);
               const auto unused = y.mm(t[1]);
               return y.split(8, 1)[0].mm(t[1].narrow(0, 0, 8));
             });
  of_weights("a hook on a value", {"b"}, [](const at::Tensor& x, list t, weight_stash*) {
    const auto y = x.mm(t[0]);
    if (y.requires_grad()) y.register_hook([](const at::Tensor& g) { return g * 2; });
    return y.tanh().mm(t[1]);
  });
  of_weights("a kept gradient of a value", {"b"}, [](const at::Tensor& x, list t, weight_stash*) {
    const auto y = x.mm(t[0]);
    if (y.requires_grad()) y.retain_grad();
    return y.tanh().mm(t[1]);
  });
  return all;
}

std::vector<at::Tensor> take_gradients(const named_weights& weights) {
  std::vector<at::Tensor> all;
  for (const auto& [name, w] : weights) {
    all.push_back(w.grad().defined() ? w.grad().clone() : at::zeros_like(w));
    w.mutable_grad().reset();
  }
  return all;
}

launch launch_of(task_kind kind, std::uint32_t mb, std::uint32_t folds = 0,
                 std::uint32_t first = 0) {
  launch l;
  l.what = {kind, microbatch_id{mb}, chunk_id{0}};
  l.folds = {microbatch_id{first}, folds};
  return l;
}

enum class way : std::uint8_t { fused, delayed, in_pieces, out_of_turn, recomputed };

/// The gradients of the inputs, then those of the weights, after one step in the middle of a
/// pipeline.
std::vector<at::Tensor> step_of(const part& p, const std::vector<at::Tensor>& xs,
                                const std::vector<at::Tensor>& gys, way how) {
  std::vector<std::unique_ptr<stage_module>> chunks;
  chunks.push_back(std::make_unique<part_module>(p));
  stage_compute_config config{{3, 1, microbatches, placement::linear}, stage_id{1}, small_train()};
  config.recompute = how == way::recomputed;
  const auto stage =
      stage_compute::make(config, std::move(chunks), std::make_shared<uneven_source>(microbatches))
          .value();
  stage->begin_step(step_id{0});
  for (std::uint32_t mb = 0; mb < microbatches; ++mb)
    stage->run(launch_of(task_kind::forward, mb), to_buffer(xs[mb].clone()));
  std::vector<at::Tensor> all(microbatches);
  const auto backward = [&](const launch& l) {
    const auto mb = l.what.mb.value();
    all[mb] = to_tensor(stage->run(l, to_buffer(gys[mb].clone())));
  };
  const std::vector<std::uint32_t> order{2, 0, 3, 1};
  if (how == way::fused) {
    for (std::uint32_t mb = 0; mb < microbatches; ++mb)
      backward(launch_of(task_kind::backward_weight, mb, 1, mb));
  } else if (how == way::out_of_turn) {
    backward(launch_of(task_kind::backward_weight, 2));
    backward(launch_of(task_kind::backward_weight, 0, 1));
    backward(launch_of(task_kind::backward, 3));
    backward(launch_of(task_kind::backward_weight, 1, 2, 1));
    stage->run(launch_of(task_kind::weight, 3, 1, 3), {});
  } else {
    for (const auto mb : order) backward(launch_of(task_kind::backward, mb));
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      const std::uint32_t pieces = how == way::in_pieces ? 3 : 1;
      for (std::uint32_t n = 0; n < pieces; ++n) {
        auto l = launch_of(task_kind::weight, mb, n + 1 == pieces ? 1 : 0, mb);
        l.piece = {n, pieces};
        stage->run(l, {});
      }
    }
  }
  CHECK(stage->meter().current() == 0);
  for (auto& g : take_gradients(p.weights)) all.push_back(std::move(g));
  return all;
}

}  // namespace

TEST_CASE("W of any module has the bits of one backward") {
  prepare_compute_thread();
  for (const auto& p : all_parts()) {
    std::vector<at::Tensor> xs, gys, expected;
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      xs.push_back(wave(p.input, 10.0 + mb));
      at::manual_seed(mb);
      auto x = xs.back().clone().requires_grad_();
      const auto y = p.forward(x, nullptr);
      gys.push_back(wave(y.sizes(), 20.0 + mb));
      y.backward(gys.back());
      // An empty tensor tells the stage before that there is no gradient.
      expected.push_back(x.grad().defined() ? x.grad() : at::zeros({0}));
    }
    for (auto& g : take_gradients(p.weights)) expected.push_back(std::move(g));
    for (const auto how :
         {way::fused, way::delayed, way::in_pieces, way::out_of_turn, way::recomputed}) {
      INFO(p.name << ", way " << static_cast<int>(how));
      const auto got = step_of(p, xs, gys, how);
      REQUIRE(got.size() == expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("gradient " << i);
        CHECK(at::equal(got[i], expected[i]));
      }
    }
  }
}

namespace {

std::set<std::string> left_by(const part& p, functions_in_w functions) {
  const auto stash = c10::make_intrusive<weight_stash>();
  const auto x = wave(p.input, 1).requires_grad_();
  const auto y = p.forward(x, stash.get());
  const graph_split split(gradient_edge(y), {gradient_edge(x), gradient_edge(stash->anchor())},
                          functions);
  std::set<std::string> left;
  for (const auto& [name, w] : p.weights)
    if (split.is_left(w)) left.insert(name);
  return left;
}

}  // namespace

TEST_CASE("B leaves to W what costs work and can run apart") {
  for (const auto& p : all_parts()) {
    INFO(p.name);
    CHECK(left_by(p, functions_in_w::all) == p.left);
  }
}

TEST_CASE("with several ranks W runs no autograd::Function") {
  const auto w = weight({16, 16}, 1), v = weight({16, 16}, 2);
  part p{"a branch", {{"a", w}, {"b", v}}, {}, {5, 16}, {}};
  p.forward = [=](const at::Tensor& x, weight_stash*) {
    return x.mm(users_square::apply(w, weight({1, 16}, 3).detach())).mm(v);
  };
  CHECK(left_by(p, functions_in_w::all) == std::set<std::string>{"a", "b"});
  CHECK(left_by(p, functions_in_w::none) == std::set<std::string>{"b"});
  p.forward = [=](const at::Tensor&, weight_stash*) {
    return users_square::apply(w, weight({1, 16}, 3).detach()).mm(v);
  };
  CHECK(left_by(p, functions_in_w::all) == std::set<std::string>{"a", "b"});
  CHECK(left_by(p, functions_in_w::none).empty());
}

TEST_CASE("functions and hooks of the user run once for each microbatch") {
  int hooks_run = 0;
  part p{"functions", {{"a", weight({16, 16}, 1)}, {"b", weight({16, 16}, 2)}}, {}, {5, 16}, {}};
  p.forward = [&hooks_run, w = p.weights](const at::Tensor& x, weight_stash*) {
    const auto one = w[0].second.narrow(0, 0, 1);
    auto y = users_square::apply(x, one).mm(users_square::apply(w[1].second, one));
    for (const auto& t : {y, y.tanh().mm(w[1].second * 2)}) {
      t.register_hook([&hooks_run](const at::Tensor&) { ++hooks_run; });
      y = t;
    }
    return y;
  };
  for (auto& [name, w] : p.weights)
    w.register_hook([&hooks_run](const at::Tensor&) { ++hooks_run; });
  std::vector<at::Tensor> xs, gys;
  for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
    xs.push_back(wave(p.input, 10.0 + mb));
    gys.push_back(wave(p.input, 20.0 + mb));
  }
  const auto counts = [&](way how) {
    hooks_run = squares_run = 0;
    step_of(p, xs, gys, how);
    return std::pair{hooks_run, squares_run};
  };
  CHECK(counts(way::fused) == std::pair<int, int>(4 * microbatches, 2 * microbatches));
  CHECK(counts(way::delayed) == counts(way::fused));
}

TEST_CASE("between B and W a stage holds the inputs and gradients of its products") {
  constexpr std::int64_t rows = 64, width = 64, bytes = rows * width * 4;
  const std::vector<at::Tensor> w{weight({width, width}, 1), weight({width, width}, 2)};
  const part p{"products",
               {{"a", w[0]}, {"b", w[1]}},
               [w](const at::Tensor& x, weight_stash* stash) {
                 const auto y = at::gelu(at::gelu(x.mm(w[0])).cos());
                 return linear(y, w[1], {}, stash).mm(w[0]);
               },
               {rows, width},
               {}};
  std::vector<std::unique_ptr<stage_module>> chunks;
  chunks.push_back(std::make_unique<part_module>(p));
  const auto stage =
      stage_compute::make({{3, 1, microbatches, placement::linear}, stage_id{1}, small_train()},
                          std::move(chunks), std::make_shared<uneven_source>(microbatches))
          .value();
  stage->begin_step(step_id{0});
  stage->run(launch_of(task_kind::forward, 0), to_buffer(wave(p.input, 1)));
  // x, the inputs of both gelu and of cos, and the inputs of two products.
  CHECK(stage->meter().current() == 6 * bytes);
  {
    const auto sent = stage->run(launch_of(task_kind::backward, 0), to_buffer(wave(p.input, 2)));
    CHECK(stage->meter().current() == 6 * bytes);  // three inputs, three gradients
  }
  stage->run(launch_of(task_kind::weight, 0, 1), {});
  CHECK(stage->meter().current() == 0);
}

TEST_CASE("B frees activations that W does not need while it runs") {
  constexpr std::int64_t width = 64, bytes = width * width * 4;
  const std::vector<at::Tensor> w{weight({width, width}, 1)};
  const part p{"deep",
               {{"a", w[0]}},
               [w](const at::Tensor& x, weight_stash*) {
                 auto y = x;
                 for (int layer = 0; layer < 20; ++layer) y = at::gelu(y.mm(w[0]));
                 return y;
               },
               {width, width},
               {}};
  std::vector<std::unique_ptr<stage_module>> chunks;
  chunks.push_back(std::make_unique<part_module>(p));
  const auto stage =
      stage_compute::make({{3, 1, microbatches, placement::linear}, stage_id{1}, small_train()},
                          std::move(chunks), std::make_shared<uneven_source>(microbatches))
          .value();
  stage->begin_step(step_id{0});
  stage->run(launch_of(task_kind::forward, 0), to_buffer(wave(p.input, 1)));
  // Inputs of 20 products and 20 activations; a gradient replaces each input of an activation.
  CHECK(stage->meter().current() == 40 * bytes);
  stage->run(launch_of(task_kind::backward, 0), to_buffer(wave(p.input, 2)));
  CHECK(stage->meter().current() == 40 * bytes);
  CHECK(stage->meter().peak() < 46 * bytes);
  stage->run(launch_of(task_kind::weight, 0, 1), {});
  CHECK(stage->meter().current() == 0);
}

TEST_CASE("W computes all gradients of a first stage without own operators") {
  const at::Tensor w = weight({16, 16}, 1);
  const part p{"first",
               {{"a", w}},
               [w](const at::Tensor&, weight_stash*) {
                 return at::tanh(wave({5, 16}, 1).mm(w)).mm(w);
               },
               {5, 16},
               {}};
  const auto gy = wave({5, 16}, 2);
  p.forward({}, nullptr).backward(gy);
  const auto expected = take_gradients(p.weights);
  std::vector<std::unique_ptr<stage_module>> chunks;
  chunks.push_back(std::make_unique<part_module>(p));
  const auto stage = stage_compute::make({{2, 1, 1, placement::linear}, stage_id{0}, small_train()},
                                         std::move(chunks), std::make_shared<uneven_source>(1))
                         .value();
  stage->begin_step(step_id{0});
  stage->run(launch_of(task_kind::forward, 0), {});
  CHECK_FALSE(stage->run(launch_of(task_kind::backward, 0), to_buffer(gy.clone())).defined());
  CHECK_FALSE(w.grad().defined());
  stage->run(launch_of(task_kind::weight, 0, 1), {});
  CHECK(at::equal(w.grad(), expected[0]));
  CHECK(stage->meter().current() == 0);
}

}  // namespace rrfp::compute::test::graph_splits
