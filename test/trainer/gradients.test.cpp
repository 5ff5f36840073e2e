/// Gradients of all kinds of weights equal those of a plain loop; invalid weights are errors.
#include <filesystem>
#include <functional>
#include <map>

#include "program.hpp"
#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;

namespace {

using weights = std::vector<at::Tensor>;
/// One part of the model with its own weights.
using layer = std::function<at::Tensor(const at::Tensor& x, const weights& w)>;

/// [16, 16], [16, 4], [4, 16], [20, 16] and [16].
stage part_with(const layer& f, std::uint32_t index) {
  stage s;
  weights w;
  const std::vector<std::vector<std::int64_t>> shapes{{16, 16}, {16, 4}, {4, 16}, {20, 16}, {16}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto count = c10::multiply_integers(shapes[i]);
    const auto n = at::arange(count, at::kFloat).view(shapes[i]);
    w.push_back(at::sin(n * 0.37 + static_cast<double>(index * 7 + i)).mul_(0.3).requires_grad_());
    s.parameters.emplace_back("part" + std::to_string(index) + "." + std::to_string(i), w.back());
  }
  s.forward = [f, w](const at::Tensor& x) { return x + at::tanh(f(x, w)); };
  return s;
}

/// Both parts in sequence.
stage whole_of(const layer& f) {
  auto first = part_with(f, 0), second = part_with(f, 1);
  stage s;
  s.parameters = first.parameters;
  s.parameters.insert(s.parameters.end(), second.parameters.begin(), second.parameters.end());
  s.forward = [first, second](const at::Tensor& x) { return second.forward(first.forward(x)); };
  return s;
}

std::string fails_with(pipeline_options options) {
  auto p = pipeline::open(job_of(), std::move(options)).value();
  const auto r = p->step(batch_of(0));
  return r ? "no error" : r.message();
}

}  // namespace

TEST_CASE("weights that are not leaves are trained as in a plain loop, bit for bit") {
  const auto ids = [](const at::Tensor& x) { return x.abs().mul(5).to(at::kLong).clamp(0, 15); };
  const std::map<std::string, layer> all{
      {"a cast",
       [](const auto& x, const auto& w) {
         return rrfp::linear(x.to(at::kBFloat16), w[0].to(at::kBFloat16)).to(at::kFloat);
       }},
      {"a transpose", [](const auto& x, const auto& w) { return rrfp::linear(x, w[0].t()); }},
      {"low-rank adapters",
       [](const auto& x, const auto& w) { return rrfp::linear(x, w[0] + w[1].mm(w[2])); }},
      {"a part",
       [](const auto& x, const auto& w) { return rrfp::linear(x, w[3].narrow(0, 2, 16), w[4]); }},
      {"a bias alone",
       [](const auto& x, const auto& w) { return rrfp::linear(x, w[0], w[4] * 2); }},
      {"rows",
       [ids](const auto& x, const auto& w) { return rrfp::embedding(ids(x), w[3] * 0.5).sum(1); }},
      {"one weight used in every way",
       [ids](const auto& x, const auto& w) {
         auto y = rrfp::linear(x, w[0], w[4]);
         y = at::linear(at::tanh(y), w[0], w[4]);
         y = rrfp::linear(at::tanh(y), w[0].t());
         y = rrfp::linear(at::tanh(y), w[0], w[4]) + rrfp::embedding(ids(x), w[0]).sum(1);
         return rrfp::linear(w[0], y).t() + rrfp::linear(y, w[0]) * w[4];
       }},
      {"ordinary operators",
       [](const auto& x, const auto& w) {
         const auto y = at::tanh(at::linear(at::dropout(x, 0.0, true), w[0], w[4]));
         return at::linear(y.mm(w[1]).mm(w[2]), w[0] * w[4]) + w[3].narrow(0, 0, 1);
       }},
      {"a weight with a hook", [](const auto& x, const auto& w) { return rrfp::linear(x, w[0]); }},
      // In the first part by one microbatch of the first step: without a gradient no momentum.
      {"a weight that is seldom used",
       [](const auto& x, const auto& w) {
         const auto y = rrfp::linear(x, w[0]);
         return x[0][0].template item<float>() > 0.95F ? y + w[4] : y;
       }},
  };
  for (const auto& [name, f] : all) {
    const auto make = [&, f = f](std::uint32_t index) {
      auto s = part_with(f, index);
      if (name == "a weight with a hook")
        s.parameters[0].second.register_hook([](const at::Tensor& g) { return g * 2; });
      return s;
    };
    auto whole = whole_of(f);
    if (name == "a weight with a hook")
      for (auto& [parameter, w] : whole.parameters)
        if (w.sizes() == at::IntArrayRef{16, 16})
          w.register_hook([](const at::Tensor& g) { return g * 2; });
    const auto plain = train_plainly(whole, 5, 3);
    for (const std::string how :
         {"policy = \"zb_h1\"\n", "policy = \"bfw_plus\"\nweight_pieces = 3\n",
          "mode = \"in-order\"\npolicy = \"one_f_one_b\"\n", ""}) {
      INFO(name << ", " << how);
      std::map<std::string, at::Tensor> learnt;
      auto options = small_options();
      options.make_stage = [&](const stage_place& at) {
        auto s = make(at.index);
        learnt.insert(s.parameters.begin(), s.parameters.end());
        return s;
      };
      auto p = pipeline::open(job_of("[dispatch]\n" + how), options).value();
      for (std::uint64_t step = 0; step < 3; ++step)
        CHECK(p->step(batch_of(step)).value().loss == plain.losses[step]);
      CHECK(p->eval(batch_of(100)).value().loss == plain.evaluated);
      CHECK(p->finish().ok());
      for (std::size_t i = 0; i < plain.weights.size(); ++i)
        CHECK(at::equal(learnt.at(whole.parameters[i].first), plain.weights[i]));
    }
  }
}

TEST_CASE("a leaf that is used but is not a parameter of its stage is an error") {
  const auto other = at::ones({16, 16}).requires_grad_();
  for (const bool is_deferred : {false, true}) {
    auto options = small_options();
    options.make_stage = [&](const stage_place& at) {
      auto s = part_at(at);
      if (at.index == 1)
        s.forward = [=, inner = s.forward](const at::Tensor& x) {
          return inner(is_deferred ? rrfp::linear(x, other) : at::linear(x, other));
        };
      return s;
    };
    CHECK_THAT(fails_with(options), Contains("stage 1, F0 of step 1: forward uses a leaf that is "
                                             "not trained here: Float [16, 16]; expected each"));
  }
  // A parameter of another stage belongs to that stage only.
  auto options = small_options();
  const auto shared = weight_of(0);
  options.make_stage = [&](const stage_place& at) {
    auto s = part_at(at);
    if (at.index == 0) s.parameters.emplace_back("shared", shared);
    s.forward = [=, inner = s.forward](const at::Tensor& x) {
      return inner(rrfp::linear(x, shared));
    };
    return s;
  };
  CHECK_THAT(fails_with(options), Contains("stage 1, F0 of step 1: forward uses a leaf"));
}

TEST_CASE("inputs and targets that require a gradient are treated as data") {
  auto p = pipeline::open(job_of(), small_options()).value();
  auto b = batch_of(0);
  std::vector<compute::microbatch> all;
  const auto xs = at::tensor_split(b.inputs, 5), ys = at::tensor_split(b.targets, 5);
  for (std::size_t i = 0; i < 5; ++i) {
    compute::microbatch mb;
    mb.inputs = xs[i].clone().requires_grad_();
    mb.targets = ys[i].clone().requires_grad_();
    mb.tokens = xs[i].size(0);
    all.push_back(mb);
  }
  CHECK(p->step(all).value().loss == train_plainly(5, 1).losses[0]);
  CHECK_FALSE(all[0].inputs.grad().defined());
}

TEST_CASE("parameters are frozen and unfrozen during the run as in a plain loop") {
  // The frozen weight of each step.
  const std::vector<std::optional<std::size_t>> frozen{2, {}, 0, 0, {}};
  const auto freeze = [&](std::vector<at::Tensor>& weights, std::size_t step) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].requires_grad_(frozen[step] != i);
  };
  // Of at::linear(), what a part with frozen parameters alone returns needs no gradient.
  const bool by_aten = GENERATE(false, true);
  const auto made = [&](stage s) {
    if (by_aten)
      s.forward = [weights = s.parameters](at::Tensor x) {
        for (const auto& w : weights) x = x + at::tanh(at::linear(x, w.second));
        return x;
      };
    return s;
  };
  const auto whole = made(layers_of(0, layers));
  std::vector<at::Tensor> plain;
  for (const auto& p : whole.parameters) plain.push_back(p.second);
  std::vector<at::Tensor> momentum(plain.size());
  std::vector<double> losses;
  for (std::size_t step = 0; step < frozen.size(); ++step) {
    freeze(plain, step);
    const auto b = batch_of(step);
    const auto xs = at::tensor_split(b.inputs, 5), ys = at::tensor_split(b.targets, 5);
    double sum = 0;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const auto l = square_loss(whole.forward(xs[i].clone()), ys[i].clone());
      (l / 37.0).backward();
      const auto count = static_cast<double>(xs[i].size(0));
      sum += l.item<double>() / count * count;
    }
    losses.push_back(sum / 37.0);
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (frozen[step] == i) continue;
      const auto& g = plain[i].grad();
      momentum[i] = momentum[i].defined() ? momentum[i].mul(0.9).add(g) : g.clone();
      plain[i].add_(momentum[i], -0.01);
      plain[i].mutable_grad().reset();
    }
  }
  for (const std::string policy : {"bfw", "zb_h1"}) {
    for (const std::uint32_t stages : {1, 2, 4}) {
      std::map<std::string, at::Tensor> learnt;
      auto options = small_options();
      options.make_stage = [&](const stage_place& at) {
        auto s = made(part_at(at));
        learnt.insert(s.parameters.begin(), s.parameters.end());
        return s;
      };
      auto j = job_of("[dispatch]\npolicy = \"" + policy + "\"\n");
      j.pipeline.stages = stages;
      auto p = pipeline::open(j, options).value();
      std::vector<at::Tensor> weights;
      for (const auto& w : learnt) weights.push_back(w.second);
      for (std::size_t step = 0; step < frozen.size(); ++step) {
        freeze(weights, step);
        CHECK(p->step(batch_of(step)).value().loss == losses[step]);
      }
      CHECK(p->finish().ok());
      for (std::size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(weights[i], plain[i]));
    }
  }
}

TEST_CASE("gradients accumulate over several steps") {
  const auto half = [](const at::Tensor& output, const at::Tensor& target) {
    return square_loss(output, target) / 2;
  };
  // Two steps of five microbatches each are one update of ten.
  const auto whole = layers_of(0, layers);
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < 6; ++step) {
    const auto b = batch_of(step);
    const auto xs = at::tensor_split(b.inputs, 5), ys = at::tensor_split(b.targets, 5);
    double sum = 0;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const auto l = half(whole.forward(xs[i].clone()), ys[i].clone());
      (l / 37.0).backward();
      const auto count = static_cast<double>(xs[i].size(0));
      sum += l.item<double>() / count * count;
    }
    losses.push_back(sum / 37.0);
    if (step % 2 == 0) continue;
    const at::NoGradGuard no_grad;
    for (const auto& [name, w] : whole.parameters) {
      w.add_(w.grad(), -0.01);
      w.mutable_grad().reset();
    }
  }
  const rrfp::test::scratch_folder folder;
  for (const std::string policy : {"bfw", "zb_h1", "one_f_one_b"}) {
    for (const std::uint32_t stages : {1, 2, 4}) {
      auto options = small_options();
      options.loss = half;
      options.lr = [](std::uint64_t) { return 0.01; };
      std::map<std::string, at::Tensor> learnt;
      options.make_stage = [&](const stage_place& at) {
        auto s = part_at(at);
        learnt.insert(s.parameters.begin(), s.parameters.end());
        return s;
      };
      auto j = job_of("[dispatch]\npolicy = \"" + policy + "\"\n");
      j.pipeline.stages = stages;
      j.train.momentum = 0;
      j.train.lr = 5;  // not that of options.lr
      j.checkpoint.dir = folder / (policy + std::to_string(stages));
      j.checkpoint.every = 3;
      auto p = pipeline::open(j, options).value();
      for (std::uint64_t step = 0; step < 6; ++step) {
        const bool update = step % 2 == 1;
        const auto r = p->step(batch_of(step), {.update = update}).value();
        CHECK(r.step == step + 1);
        CHECK(r.loss == losses[step]);
        CHECK(r.lr == (update ? 0.01 : 0));
        CHECK((r.gradient_norm > 0) == update);
        CHECK(p->eval(batch_of(7)).ok());
        if (!update)
          CHECK(p->save().message() ==
                "save(): expected a step that updates, got waiting gradients");
      }
      CHECK(p->steps() == 6);
      CHECK(p->finish().ok());
      for (const auto& [name, w] : whole.parameters) CHECK(at::equal(learnt.at(name), w));
      // Step 3 did not update, so its save waited for step 4.
      CHECK(std::filesystem::exists(j.checkpoint.dir + "/step-00000004/manifest.json"));
      CHECK_FALSE(std::filesystem::exists(j.checkpoint.dir + "/step-00000003"));
    }
  }
}

}  // namespace rrfp::testing
