/// Compares each parallel operator with the plain one: output, input gradient, weight gradients.
#include <algorithm>
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <catch2/catch.hpp>

#include <rrfp/torch/batch_source.hpp>
#include <rrfp/torch/operators.hpp>
#include <rrfp/torch/parallel_operators.hpp>
#include <rrfp/torch/weight_stash.hpp>

#include "ranks.hpp"

namespace rrfp::compute::test::parallel_operators {

namespace {

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty(shape).normal_(0, 1, generator);
}

at::Tensor leaf(const at::Tensor& t) { return t.contiguous().clone().requires_grad_(); }

/// Part `rank` of `ranks` along a dimension.
at::Tensor part(const at::Tensor& t, std::int64_t dimension, const shared_group& g) {
  const auto length = t.size(dimension) / g->size();
  return t.narrow(dimension, g->rank() * length, length);
}

at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                                  weight_stash* stash, const shared_group& g) {
  return linear(copy_to_group(x, g), w, b, stash);
}

enum class how { autograd, deferred, immediate };

struct outcome {
  at::Tensor y, gx;
  std::vector<at::Tensor> gw;
};

using program = std::function<at::Tensor(weight_stash* stash)>;

outcome run(how h, const at::Tensor& x, const std::vector<at::Tensor>& weights,
            const at::Tensor& gy, const program& f) {
  using torch::autograd::impl::gradient_edge;
  outcome o;
  if (h == how::autograd) {
    o.y = f(nullptr);
    o.y.backward(gy);
    if (x.requires_grad()) o.gx = x.grad();
  } else {
    const auto stash = c10::make_intrusive<weight_stash>();
    stash->set_immediate(h == how::immediate);
    o.y = f(stash.get());
    torch::autograd::edge_list wanted{gradient_edge(stash->anchor())};
    for (const auto& w : weights) wanted.push_back(gradient_edge(w));
    if (x.requires_grad()) wanted.push_back(gradient_edge(x));
    const auto gradients = torch::autograd::Engine::get_default_engine().execute(
        {gradient_edge(o.y)}, {gy}, false, false, false, wanted);
    if (x.requires_grad()) o.gx = gradients.back();
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (gradients[i + 1].defined()) stash->ordinary(weights[i], gradients[i + 1]);
    stash->fold();
  }
  o.y = o.y.detach();
  for (const auto& w : weights) o.gw.push_back(w.grad());
  return o;
}

/// Equal up to some roundings of the largest element, because sums over ranks may cancel.
bool close(const at::Tensor& a, const at::Tensor& b) {
  if (!a.sizes().equals(b.sizes())) return false;
  const auto size = std::max(1.0, b.abs().max().item<double>());
  return (a - b).abs().max().item<double>() < 1e-6 * size;
}

/// What a rank holds of a tensor: all of it, or a part along a dimension.
constexpr int all = -1;

at::Tensor seen_by(const at::Tensor& whole, int dimension, std::uint32_t rank,
                   std::uint32_t ranks) {
  const auto length = dimension == all ? 0 : whole.size(dimension) / ranks;
  return dimension == all ? whole : whole.narrow(dimension, rank * length, length);
}

struct cuts {
  int y = all, gx = all;
  std::vector<int> gw;
};

/// Runs on `ranks` ranks in every way and compares with `expected`. Replicated tensors must be
/// equal bit for bit, and so must deferred and immediate weight gradients.
void check_against(const outcome& expected, const cuts& c, std::uint32_t ranks,
                   const std::function<outcome(how, const shared_group&)>& work) {
  std::vector<outcome> deferred;
  for (const auto h : {how::autograd, how::deferred, how::immediate}) {
    INFO(ranks << " ranks, way " << static_cast<int>(h));
    const auto got = on_ranks(ranks, [&](const shared_group& g) { return work(h, g); });
    for (std::uint32_t r = 0; r < ranks; ++r) {
      INFO("rank " << r);
      CHECK(close(got[r].y, seen_by(expected.y, c.y, r, ranks)));
      if (c.y == all) CHECK(at::equal(got[r].y, got[0].y));
      if (expected.gx.defined()) {
        CHECK(close(got[r].gx, seen_by(expected.gx, c.gx, r, ranks)));
        if (c.gx == all) CHECK(at::equal(got[r].gx, got[0].gx));
      }
      for (std::size_t w = 0; w < c.gw.size(); ++w) {
        INFO("weight " << w);
        CHECK(close(got[r].gw[w], seen_by(expected.gw[w], c.gw[w], r, ranks)));
        if (c.gw[w] == all) CHECK(at::equal(got[r].gw[w], got[0].gw[w]));
        if (h == how::immediate) CHECK(at::equal(got[r].gw[w], deferred[r].gw[w]));
      }
    }
    if (h == how::deferred) deferred = got;
  }
}

const auto weight = random({48, 32}, 1);
const auto bias = random({48}, 2);
const auto activation = random({4, 6, 32}, 3);
const auto gradient = random({4, 6, 48}, 4);

outcome plain_linear() {
  prepare_compute_thread();
  const auto x = leaf(activation);
  const auto w = leaf(weight);
  const auto b = leaf(bias);
  return run(how::autograd, x, {w, b}, gradient,
             [&](weight_stash*) { return at::linear(x, w, b); });
}

}  // namespace

TEST_CASE("a column-parallel linear gives each rank its outputs and the whole input gradient") {
  const auto expected = plain_linear();
  for (const auto ranks : {1u, 2u, 4u, 8u}) {
    check_against(expected, {2, all, {0, 0}}, ranks, [](how h, const shared_group& g) {
      const auto x = leaf(activation);
      const auto w = leaf(part(weight, 0, g));
      const auto b = leaf(part(bias, 0, g));
      return run(h, x, {w, b}, part(gradient, 2, g).contiguous(),
                 [&](weight_stash* s) { return column_parallel_linear(x, w, b, s, g); });
    });
  }
}

TEST_CASE("a row-parallel linear sums what the ranks have, and adds the bias once") {
  const auto expected = plain_linear();
  for (const auto ranks : {1u, 2u, 4u, 8u}) {
    check_against(expected, {all, 2, {1, all}}, ranks, [](how h, const shared_group& g) {
      const auto x = leaf(part(activation, 2, g));
      const auto w = leaf(part(weight, 1, g));
      const auto b = leaf(bias);
      return run(h, x, {w, b}, gradient,
                 [&](weight_stash* s) { return row_parallel_linear(x, w, b, s, g); });
    });
  }
}

TEST_CASE("parallel operators accept weights that are not leaves") {
  const auto expected = plain_linear();
  const auto table = random({16, 12}, 1);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  const auto ids = at::randint(16, {5, 9}, generator, at::kLong);
  const auto gy = random({5, 9, 12}, 3);
  const auto rows = leaf(table);
  const auto of_rows =
      run(how::autograd, ids, {rows}, gy, [&](weight_stash*) { return at::embedding(rows, ids); });
  for (const auto ranks : {1u, 2u}) {
    check_against(expected, {all, 2, {1, all}}, ranks, [](how h, const shared_group& g) {
      const auto x = leaf(part(activation, 2, g));
      const auto w = leaf(part(weight, 1, g));
      const auto b = leaf(bias);
      return run(h, x, {w, b}, gradient,
                 [&](weight_stash* s) { return row_parallel_linear(x, w * 1, b * 1, s, g); });
    });
    check_against(of_rows, {all, all, {0}}, ranks, [&](how h, const shared_group& g) {
      const auto mine = leaf(part(table, 0, g));
      return run(h, ids, {mine}, gy,
                 [&](weight_stash* s) { return parallel_embedding(ids, mine * 1, s, g); });
    });
  }
}

TEST_CASE("column then row: two layers with a nonlinearity between them") {
  prepare_compute_thread();
  const auto down = random({32, 48}, 5);
  const auto gy = random({4, 6, 32}, 6);
  outcome expected;
  {
    const auto x = leaf(activation);
    const auto w = leaf(weight);
    const auto b = leaf(bias);
    const auto d = leaf(down);
    // The residual sends the gradient to two consumers: a sum in place would corrupt the other.
    expected = run(how::autograd, x, {w, b, d}, gy,
                   [&](weight_stash*) { return at::linear(at::gelu(at::linear(x, w, b)), d) + x; });
  }
  for (const auto ranks : {1u, 2u, 4u, 8u}) {
    check_against(expected, {all, all, {0, 0, 1}}, ranks, [&](how h, const shared_group& g) {
      const auto x = leaf(activation);
      const auto w = leaf(part(weight, 0, g));
      const auto b = leaf(part(bias, 0, g));
      const auto d = leaf(part(down, 1, g));
      return run(h, x, {w, b, d}, gy, [&](weight_stash* s) {
        const auto y = column_parallel_linear(x, w, b, s, g);
        return row_parallel_linear(at::gelu(y), d, {}, s, g) + x;
      });
    });
  }
}

TEST_CASE("a gradient with two consumers is summed for one of them only") {
  const auto gy = random({4, 6, 32}, 7);
  const auto got = on_ranks(4, [&](const shared_group& g) {
    const auto a = leaf(activation);
    const auto b = leaf(activation);
    (copy_to_group(a, g) + b).backward(gy);
    return outcome{{}, a.grad(), {b.grad()}};
  });
  for (const auto& o : got) {
    CHECK(close(o.gx, gy * 4));
    CHECK(at::equal(o.gw[0], gy));
  }
}

TEST_CASE("copy and reduce are each other's backward") {
  const auto got = on_ranks(3, [&](const shared_group& g) {
    const auto x = leaf(at::full({5}, 1.0 + g->rank()));
    auto y = reduce_from_group(x, g);
    y.backward(at::full({5}, 2.0));
    return outcome{y.detach(), x.grad(), {}};
  });
  for (const auto& o : got) {
    CHECK(at::equal(o.y, at::full({5}, 6.0)));
    CHECK(at::equal(o.gx, at::full({5}, 2.0)));
  }
}

TEST_CASE("a vocabulary-parallel embedding has the bits of the whole one") {
  prepare_compute_thread();
  const auto table = random({16, 12}, 1);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  // Rows 14 and 15 are never used: with 8 ranks, the last one has nothing to do.
  const auto ids = at::randint(14, {5, 9}, generator, at::kLong);
  const auto gy = random({5, 9, 12}, 3);
  const auto w = leaf(table);
  const auto expected =
      run(how::autograd, ids, {w}, gy, [&](weight_stash*) { return at::embedding(w, ids); });
  for (const auto ranks : {1u, 2u, 4u, 8u}) {
    check_against(expected, {all, all, {0}}, ranks, [&](how h, const shared_group& g) {
      const auto mine = leaf(part(table, 0, g));
      const auto o = run(h, ids, {mine}, gy,
                         [&](weight_stash* s) { return parallel_embedding(ids, mine, s, g); });
      // No rounding anywhere: one rank has the row, the others zeros.
      TORCH_CHECK(at::equal(o.y, expected.y), "forward has other bits");
      TORCH_CHECK(at::equal(o.gw[0], part(expected.gw[0], 0, g)), "the gradient has other bits");
      return o;
    });
  }
}

TEST_CASE("a vocabulary-parallel cross-entropy is that of the whole logits") {
  prepare_compute_thread();
  auto logits = random({21, 16}, 1) * 4;
  logits[3].add_(1e4);  // exp() of it overflows unless the maximum of all ranks is taken off
  logits[4].sub_(1e4);
  logits[5][15] = 80;  // the maximum and the target on different ranks
  auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  auto targets = at::randint(16, {21}, generator, at::kLong);
  targets[5] = 0;
  targets[6] = ignored_target;
  targets[20] = ignored_target;
  for (std::int64_t i = 7; i < 15; ++i) targets[i] = 2 * (i - 7) + i % 2;  // ends of all parts
  const auto seed = at::full({}, 0.25);
  const auto expect = [&](const at::Tensor& t) {
    const auto x = leaf(logits);
    return run(how::autograd, x, {}, seed, [&](weight_stash*) {
      return at::cross_entropy_loss(x, t, {}, at::Reduction::Sum, ignored_target);
    });
  };
  const auto check = [&](const at::Tensor& t) {
    const auto expected = expect(t);
    for (const auto ranks : {1u, 2u, 4u, 8u}) {
      check_against(expected, {all, 1, {}}, ranks, [&](how, const shared_group& g) {
        const auto x = leaf(part(logits, 1, g));
        return run(how::autograd, x, {}, seed,
                   [&](weight_stash*) { return parallel_cross_entropy(x, t, g); });
      });
    }
  };
  check(targets);
  check(at::full({21}, ignored_target, at::kLong));
}

TEST_CASE("ids beyond the vocabulary are refused on every rank, with their range") {
  const auto refused = [](const std::function<void(const shared_group&)>& work) {
    return on_ranks(2, [&](const shared_group& g) {
      try {
        work(g);
      } catch (const c10::Error& e) {
        return std::string(e.what_without_backtrace());
      }
      return std::string("not refused");
    });
  };
  for (const auto& text : refused([](const shared_group& g) {
         parallel_embedding(at::full({3}, 16, at::kLong), at::zeros({8, 4}), nullptr, g);
       })) {
    CHECK_THAT(text, Catch::Contains("token ids out of range: 16 to 16 with a vocabulary of 16"));
  }
  for (const auto& text : refused([](const shared_group& g) {
         parallel_cross_entropy(at::zeros({1, 8}), at::full({1}, -1, at::kLong), g);
       })) {
    CHECK_THAT(text, Catch::Contains("targets out of range: -1 to -1"));
  }
}

TEST_CASE("a group of one rank changes no bit and costs nothing") {
  const auto expected = plain_linear();
  for (const auto& g : {shared_group(), make_groups(1)[0]}) {
    const auto x = leaf(activation);
    const auto w = leaf(weight);
    const auto b = leaf(bias);
    CHECK(copy_to_group(x, g).is_same(x));
    CHECK(reduce_from_group(x, g).is_same(x));
    for (const auto& f : std::vector<program>{
             [&](weight_stash* s) { return column_parallel_linear(x, w, b, s, g); },
             [&](weight_stash* s) { return row_parallel_linear(x, w, b, s, g); }}) {
      const auto got = run(how::deferred, x, {w, b}, gradient, f);
      CHECK(at::equal(got.y, expected.y));
      CHECK(at::equal(got.gx, expected.gx));
      CHECK(at::equal(got.gw[0], expected.gw[0]));
      CHECK(at::equal(got.gw[1], expected.gw[1]));
      w.mutable_grad().reset();
      b.mutable_grad().reset();
    }
  }
}

}  // namespace rrfp::compute::test::parallel_operators
