#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <catch2/catch.hpp>

#include <rrfp/torch/graph_split.hpp>
#include <rrfp/torch/operators.hpp>
#include <rrfp/torch/stage_compute.hpp>
#include <rrfp/torch/weight_stash.hpp>

namespace rrfp::compute::test {

namespace {

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty(shape).normal_(0, 1, generator);
}

at::Tensor leaf(at::IntArrayRef shape, std::uint64_t seed) {
  return random(shape, seed).requires_grad_();
}

using program = std::function<at::Tensor(const at::Tensor& x, weight_stash* stash)>;

/// The gradient of the input after a backward that leaves weight gradients to `stash`.
at::Tensor backward_into(weight_stash& stash, const at::Tensor& x, const program& f,
                         const at::Tensor& gy) {
  using torch::autograd::impl::gradient_edge;
  const auto y = f(x, &stash);
  torch::autograd::edge_list wanted{gradient_edge(stash.anchor())};
  if (x.requires_grad()) wanted.push_back(gradient_edge(x));
  const auto gradients = torch::autograd::Engine::get_default_engine().execute(
      {gradient_edge(y)}, {gy}, false, false, false, wanted);
  return x.requires_grad() ? gradients[1] : at::Tensor();
}

struct gradients {
  at::Tensor input;
  std::vector<at::Tensor> weights;
};

gradients collect(at::Tensor input, const std::vector<at::Tensor>& weights) {
  gradients all{std::move(input), {}};
  for (const auto& w : weights) {
    all.weights.push_back(w.grad());
    w.mutable_grad().reset();
  }
  return all;
}

void check_same(const gradients& got, const gradients& expected) {
  if (expected.input.defined()) CHECK(at::equal(got.input, expected.input));
  REQUIRE(got.weights.size() == expected.weights.size());
  for (std::size_t i = 0; i < expected.weights.size(); ++i) {
    INFO("weight " << i);
    REQUIRE(got.weights[i].defined());
    CHECK(at::equal(got.weights[i], expected.weights[i]));
  }
}

/// Ordinary autograd, the split and the fused backward give the same bits, also when a gradient
/// exists already: g + (a + b) is not (g + a) + b for a weight that is used twice.
void check_all_ways(const at::Tensor& x, const std::vector<at::Tensor>& weights, const program& f) {
  prepare_compute_thread();
  const auto shape = f(x, nullptr).sizes().vec();
  const auto gys = {random(shape, 98), random(shape, 99)};
  at::Tensor of_x;
  for (const auto& gy : gys) {
    f(x, nullptr).backward(gy);
    if (!x.requires_grad()) continue;
    of_x = x.grad().clone();
    x.mutable_grad().reset();
  }
  const auto expected = collect(of_x, weights);

  for (const bool immediate : {false, true}) {
    INFO("immediate " << immediate);
    at::Tensor gx;
    for (const auto& gy : gys) {
      const auto stash = c10::make_intrusive<weight_stash>();
      stash->set_immediate(immediate);
      const auto& weight = weights.front();
      const auto before = weight.grad().defined() ? weight.grad().clone() : at::Tensor{};
      gx = backward_into(*stash, x, f, gy);
      // Immediate: computed in the backward. Deferred: not computed before the fold.
      const bool unchanged =
          before.defined() ? at::equal(weight.grad(), before) : !weight.grad().defined();
      CHECK(unchanged != immediate);
      stash->fold();
    }
    check_same(collect(gx, weights), expected);
  }
}

}  // namespace

TEST_CASE("a deferred linear has the gradients of at::linear, bit for bit") {
  const auto w = leaf({48, 32}, 1);
  const auto b = leaf({48}, 2);
  const program with_bias = [&](const at::Tensor& x, weight_stash* s) {
    return linear(x, w, b, s);
  };
  const program without = [&](const at::Tensor& x, weight_stash* s) { return linear(x, w, {}, s); };
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{4, 16, 32}, {7, 32}, {1, 1, 32}, {2, 3, 5, 32}}) {
    INFO("x of " << shape.size() << " dimensions");
    check_all_ways(leaf(shape, 3), {w, b}, with_bias);
    check_all_ways(leaf(shape, 4), {w}, without);
  }
  check_all_ways(random({4, 16, 32}, 5), {w, b}, with_bias);  // no gradient for x
}

TEST_CASE("a deferred linear takes an input that is not contiguous") {
  const auto w = leaf({48, 32}, 1);
  const auto b = leaf({48}, 2);
  check_all_ways(leaf({16, 4, 32}, 3), {w, b}, [&](const at::Tensor& x, weight_stash* s) {
    return linear(x.transpose(0, 1), w, b, s);
  });
}

TEST_CASE("a deferred embedding has the gradients of at::embedding, bit for bit") {
  const auto w = leaf({10, 32}, 1);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  const auto ids = at::randint(10, {4, 16}, generator, at::kLong);  // every row many times
  check_all_ways(ids, {w},
                 [&](const at::Tensor& x, weight_stash* s) { return embedding(x, w, s); });
}

TEST_CASE("a weight used twice or thrice keeps the bits of autograd") {
  const auto w = leaf({32, 32}, 1);
  const auto b = leaf({32}, 2);
  check_all_ways(leaf({4, 32}, 3), {w, b}, [&](const at::Tensor& x, weight_stash* s) {
    const auto y = linear(at::gelu(linear(x, w, b, s)), w, b, s);
    return linear(at::gelu(y), w, {}, s);
  });
}

TEST_CASE("a weight that other operators use as well is left to the graph, bit for bit") {
  const auto w = leaf({32, 32}, 1);
  const auto b = leaf({32}, 2);
  const auto x = leaf({4, 32}, 3);
  const auto ids = at::arange(4);
  const auto mixed = [&](weight_stash* s) {
    auto y = at::linear(linear(x, w, b, s), w, b);
    y = linear(at::gelu(y), w.t(), b, s) + linear(y, w, {}, s);
    return linear(w, at::gelu(y), {}, s).t() + embedding(ids, w, s) * b;
  };
  prepare_compute_thread();
  const auto gys = {random({4, 32}, 98), random({4, 32}, 99)};
  for (const auto& gy : gys) mixed(nullptr).backward(gy);
  const auto expected = collect(x.grad(), {w, b});
  x.mutable_grad().reset();

  using torch::autograd::impl::gradient_edge;
  for (const bool immediate : {false, true}) {
    INFO("immediate " << immediate);
    at::Tensor gx = at::zeros_like(x);
    for (const auto& gy : gys) {
      const auto stash = c10::make_intrusive<weight_stash>();
      stash->set_immediate(immediate);
      const auto root = gradient_edge(mixed(stash.get()));
      const auto leaves = leaves_of(root, stash->anchor());
      CHECK(leaves.size() == 3);
      for (const auto& l : leaves) {
        CHECK(l.is_ordinary);
        stash->leave_to_graph(l.value);
      }
      const auto gradients = torch::autograd::Engine::get_default_engine().execute(
          {root}, {gy}, false, false, false,
          {gradient_edge(stash->anchor()), gradient_edge(x), gradient_edge(w), gradient_edge(b)});
      gx += gradients[1];
      stash->ordinary(w, gradients[2]);
      stash->ordinary(b, gradients[3]);
      stash->fold();
    }
    check_same(collect(gx, {w, b}), expected);
  }
}

TEST_CASE("leaves that only deferred operators use are not ordinary") {
  const auto w = leaf({32, 32}, 1);
  const auto v = leaf({32, 32}, 2);
  const auto x = leaf({4, 32}, 3);
  const auto stash = c10::make_intrusive<weight_stash>();
  const auto y = linear(at::gelu(linear(x, w, {}, stash.get())), w, {}, stash.get()) * v.sum();
  const auto leaves = leaves_of(torch::autograd::impl::gradient_edge(y), stash->anchor());
  REQUIRE(leaves.size() == 3);
  for (const auto& l : leaves) CHECK(l.is_ordinary == !l.value.is_same(w));
}

TEST_CASE("a branch without influence on the loss adds nothing to the gradient of its weight") {
  const auto w = leaf({32, 32}, 1);
  const auto dead = [&](const at::Tensor& x, weight_stash* s) {
    const auto unused = linear(x, w, {}, s);
    return linear(x, w, {}, s);
  };
  const auto x = leaf({4, 32}, 2);
  const auto gy = random({4, 32}, 3);
  dead(x, nullptr).backward(gy);
  const auto expected = collect(x.grad(), {w});
  x.mutable_grad().reset();
  const auto stash = c10::make_intrusive<weight_stash>();
  const auto gx = backward_into(*stash, x, dead, gy);
  stash->fold();
  check_same(collect(gx, {w}), expected);
}

TEST_CASE("a frozen weight gets no gradient and costs no memory") {
  const auto w = random({32, 32}, 1);
  const auto x = leaf({4, 32}, 2);
  const auto stash = c10::make_intrusive<weight_stash>();
  const auto gx = backward_into(
      *stash, x, [&](const at::Tensor& in, weight_stash* s) { return linear(in, w, {}, s); },
      random({4, 32}, 3));
  stash->fold();
  CHECK(!w.grad().defined());
  CHECK(at::equal(gx, random({4, 32}, 3).mm(w)));
}

TEST_CASE("a weight that changes between F and B is an error") {
  const auto w = leaf({32, 32}, 1);
  const auto stash = c10::make_intrusive<weight_stash>();
  CHECK_THROWS_AS(backward_into(
                      *stash, leaf({4, 32}, 2),
                      [&](const at::Tensor& in, weight_stash* s) {
                        const auto y = linear(in, w, {}, s);
                        const at::NoGradGuard no_grad;
                        w.add_(1);
                        return y;
                      },
                      random({4, 32}, 3)),
                  c10::Error);
}

TEST_CASE("gradients of microbatches are summed in the order of folding") {
  const auto w = leaf({32, 32}, 1);
  std::vector<at::Tensor> xs, gys;
  for (std::uint64_t mb = 0; mb < 4; ++mb) {
    xs.push_back(leaf({64, 32}, 10 + mb));
    gys.push_back(random({64, 32}, 20 + mb));
  }
  for (std::size_t mb = 0; mb < 4; ++mb) at::linear(xs[mb], w).backward(gys[mb]);
  const auto expected = collect({}, {w}).weights[0];

  const auto folded = [&](const std::vector<std::size_t>& backward_order,
                          const std::vector<std::size_t>& fold_order) {
    std::vector<c10::intrusive_ptr<weight_stash>> stashes;
    for (int i = 0; i < 4; ++i) stashes.push_back(c10::make_intrusive<weight_stash>());
    for (const auto mb : backward_order) {
      backward_into(
          *stashes[mb], xs[mb],
          [&](const at::Tensor& in, weight_stash* s) { return linear(in, w, {}, s); }, gys[mb]);
    }
    for (const auto mb : fold_order) stashes[mb]->fold();
    return collect({}, {w}).weights[0];
  };
  CHECK(at::equal(folded({2, 0, 3, 1}, {0, 1, 2, 3}), expected));
  // The order does matter, so it must be fixed.
  CHECK(!at::equal(folded({0, 1, 2, 3}, {3, 2, 1, 0}), expected));
}

TEST_CASE("a dropout mask follows from its key alone") {
  const auto x = at::ones({8, 64});
  const dropout_key key{7, step_id{3}, microbatch_id{2}, 1, 2};
  const auto first = dropout(x, 0.25, key);
  at::randn({1000});  // other random numbers in between
  dropout(x, 0.25, {7, step_id{3}, microbatch_id{1}, 1, 2});
  CHECK(at::equal(dropout(x, 0.25, key), first));

  for (const auto& other : std::vector<dropout_key>{{8, step_id{3}, microbatch_id{2}, 1, 2},
                                                    {7, step_id{4}, microbatch_id{2}, 1, 2},
                                                    {7, step_id{3}, microbatch_id{3}, 1, 2},
                                                    {7, step_id{3}, microbatch_id{2}, 2, 2},
                                                    {7, step_id{3}, microbatch_id{2}, 1, 1}}) {
    CHECK(!at::equal(dropout(x, 0.25, other), first));
  }
}

TEST_CASE("dropout drops the given share and keeps the mean") {
  const auto y = dropout(at::ones({1000, 100}), 0.25, {1, step_id{0}, microbatch_id{0}, 0, 0});
  CHECK((y == 0).to(at::kDouble).mean().item<double>() == Approx(0.25).margin(0.01));
  CHECK(y.mean().item<double>() == Approx(1.0).margin(0.01));
  CHECK(y.max().item<double>() == Approx(1 / 0.75));
  const auto x = leaf({4, 4}, 1);
  CHECK(dropout(x, 0, {}).is_same(x));
}

}  // namespace rrfp::compute::test
