/// Several tensors between stages.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include <rrfp/pack.hpp>

#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;

TEST_CASE("Tensors of every type, shape and value survive packing") {
  std::vector<at::Tensor> tensors{
      at::tensor({1.5, -2.5}, at::kDouble),
      at::empty({0, 3}, at::kInt),
      at::full({}, -7, at::kLong),
      at::tensor({1, 0, 1}).to(at::kBool),
      {},
      at::arange(6, at::kFloat).view({2, 3}).t(),
      at::full({3}, 0.1, at::kBFloat16),
      at::full({2}, std::numeric_limits<double>::quiet_NaN(), at::kHalf),
      at::arange(40, at::kByte).view({5, 8}),
      at::ones({1, 1, 1, 1, 1, 1, 1, 2}),
  };
  for (const std::string note : {"", "a note", "seventeen letters"}) {
    const auto message = pack({tensors, note});
    CHECK(message.scalar_type() == at::kFloat);
    CHECK(message.dim() == packed_dimensions);
    const auto p = unpack(message);
    CHECK(p.note == note);
    REQUIRE(p.tensors.size() == tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      INFO(i);
      REQUIRE(p.tensors[i].defined() == tensors[i].defined());
      if (!tensors[i].defined()) continue;
      CHECK(p.tensors[i].scalar_type() == tensors[i].scalar_type());
      CHECK(p.tensors[i].sizes() == tensors[i].sizes());
      CHECK(at::allclose(p.tensors[i], tensors[i], 0, 0, /*equal_nan=*/true));
    }
  }
  CHECK(unpack(pack(parcel{})).tensors.empty());
}

TEST_CASE("One float tensor travels as it is, unless it looks like a packed one") {
  const auto plain = at::ones({2, 3});
  CHECK(pack({plain}).is_same(plain));
  CHECK(unpack(plain).tensors.at(0).is_same(plain));
  const auto strange = at::ones({1, 1, 1, 1, 1, 1, 1, 5});
  CHECK_FALSE(pack({strange}).is_same(strange));
  CHECK(at::equal(unpack(pack({strange})).tensors.at(0), strange));
}

TEST_CASE("Packed tensors keep their strides") {
  const auto x = at::rand({2, 3, 4, 5});
  const std::vector<at::Tensor> tensors{
      x.contiguous(at::MemoryFormat::ChannelsLast),
      at::rand({2, 1, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
      at::rand({1, 3, 2, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast3d),
      x.transpose(1, 2),
      x.slice(1, 0, 3, 2),
      at::rand({2, 1, 3}).expand({2, 4, 3}),
      at::arange(6).view({2, 3}).t(),
      at::rand({3, 2}, at::kComplexFloat).t(),
      at::rand({4}).to(at::kBFloat16).expand({3, 4}),
      at::empty_strided({1, 3}, {7, 1}).fill_(2),
  };
  const auto p = unpack(pack(parcel{tensors, {}}));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    INFO(i);
    CHECK(at::equal(p.tensors[i], tensors[i]));
    CHECK(p.tensors[i].strides() == tensors[i].strides());
  }
  const auto windows = at::arange(6, at::kFloat).unfold(0, 3, 1);
  const auto row = at::rand({2, 1000}).select(1, 0);
  for (const auto& t : {windows, row}) {
    const auto arrived = unpack(pack({t, {}})).tensors.front();
    CHECK(at::equal(arrived, t));
    CHECK(arrived.is_contiguous());
  }
}

TEST_CASE("A gradient of a channels_last tensor keeps its strides, others are contiguous") {
  const auto leaf = at::rand({2, 3, 4, 5}).requires_grad_();
  const auto wide = at::rand({3, 1}).requires_grad_();
  auto sent = leaf.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor at_sender;
  sent.register_hook([&](const at::Tensor& g) { at_sender = g; });
  const auto packed = pack({sent, wide.expand({3, 4}), {}});
  const auto message = packed.detach().requires_grad_();
  const auto p = unpack(message);
  const auto factor = at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  ((p.tensors[0] * factor).sum() + (p.tensors[1] * 2).sum()).backward();
  packed.backward(message.grad());
  CHECK(at::equal(leaf.grad(), factor));
  CHECK(at_sender.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(at::equal(wide.grad(), at::full({3, 1}, 8.0)));
}

TEST_CASE("Views that are conjugated or negated travel as their values") {
  const auto z = at::rand({3}, at::kComplexFloat);
  const auto p = unpack(pack({at::conj(z), at::imag(at::conj(z))}));
  CHECK(at::equal(p.tensors[0], at::conj(z)));
  CHECK(at::equal(p.tensors[1], -at::imag(z)));
  CHECK_FALSE(pack({at::imag(at::conj(z))}).is_neg());
}

TEST_CASE("A tensor that is not dense is refused by its kind") {
  const auto x = at::rand({2, 3});
  for (const auto& t : {at::quantize_per_tensor(x, 0.1, 0, at::kQInt8), x.to_sparse(),
                        at::empty({2, 3}, at::kMeta)}) {
    CHECK_THROWS_WITH(pack({t}), Contains("between stages: expected dense tensors, got a"));
    CHECK_THROWS_WITH(pack({t, x}), Contains("between stages: expected dense tensors, got a"));
  }
}

TEST_CASE("Gradients pass through packing, and only where one is required") {
  const auto x = at::rand({3, 2}).requires_grad_();
  const auto half = at::rand({4}).to(at::kHalf).requires_grad_();
  const auto constant = at::rand({5});
  const auto message = pack({x * 2, half, constant}).detach().requires_grad_();
  const auto p = unpack(message);
  CHECK(p.tensors[0].requires_grad());
  CHECK(p.tensors[1].requires_grad());
  CHECK_FALSE(p.tensors[2].requires_grad());
  (p.tensors[0].sum() * 3 + p.tensors[1].sum().to(at::kFloat)).backward();
  pack({x * 2, half, constant}).backward(message.grad());
  CHECK(at::equal(x.grad(), at::full({3, 2}, 6.0)));
  CHECK(at::equal(half.grad(), at::ones({4}, at::kHalf)));
  CHECK_THROWS_WITH(pack({at::rand({2}, at::kDouble).requires_grad_(), constant}),
                    Contains("expected float32, bfloat16 or float16 where a gradient is required"));
}

namespace {

/// Layers of a U: those of the first half remember their inputs, those of the second half add them.
struct u_layers {
  std::int64_t first, end;
  std::vector<std::pair<std::string, at::Tensor>> weights;

  std::vector<at::Tensor> forward(std::vector<at::Tensor> all) {
    if (first == 0) all.push_back(all.front() > 0);  // a mask for the last layer
    auto x = all.front();
    for (auto i = first; i < end; ++i) {
      const auto& w = weights[static_cast<std::size_t>(i - first)].second;
      if (i < layers / 2) {
        all.push_back(x);
        x = at::tanh(at::linear(x, w));
      } else {
        x = at::tanh(at::linear(x, w)) + all.back();
        all.pop_back();
      }
    }
    if (end == layers) return {x * all.at(1)};
    all.front() = x;
    return all;
  }
  const auto& named_parameters() const { return named_; }
  void train(bool) {}

  struct named {
    std::string name;
    at::Tensor tensor;
    const std::string& key() const { return name; }
    const at::Tensor& value() const { return tensor; }
  };
  std::vector<named> named_;
};

stage u_stage(std::int64_t first, std::int64_t end) {
  auto module = std::make_shared<u_layers>();
  module->first = first;
  module->end = end;
  module->weights = layers_of(first, end).parameters;
  for (const auto& [name, value] : module->weights) module->named_.push_back({name, value});
  return stage_of(module);
}

}  // namespace

TEST_CASE("A tensor of a message that nothing uses has no gradient") {
  const auto a = at::rand({3}).requires_grad_(), b = at::rand({2, 20}).requires_grad_();
  const auto made = [&] { return pack({a * 2, at::Tensor{}, b.to(at::kBFloat16), a.exp()}); };
  for (const bool uses_b : {true, false}) {
    const auto message = made().detach().requires_grad_();
    const auto p = unpack(message);
    (uses_b ? p.tensors[2] : p.tensors[0]).sum().backward();
    made().backward(message.grad());
    CHECK(a.grad().defined() == !uses_b);
    CHECK(b.grad().defined() == uses_b);
    CHECK(at::equal(uses_b ? b.grad() : a.grad(), uses_b ? at::ones({2, 20}) : at::full({3}, 2.0)));
    a.mutable_grad().reset();
    b.mutable_grad().reset();
  }
}

TEST_CASE("A model with skips over stages equals a plain loop to the last bit") {
  const auto plain = train_plainly(u_stage(0, layers), 5, 4);
  for (const std::string how : {"", "[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n",
                                "[dispatch]\npolicy = \"zb_h1\"\n",
                                "[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n"}) {
    for (const std::uint32_t stages : {1, 2, 4}) {
      for (const bool recompute : {false, true}) {
        INFO(stages << " stages " << how << " recompute " << recompute);
        auto options = small_options();
        options.make_stage = [](const stage_place& at) {
          return u_stage(layers * at.index / at.count, layers * (at.index + 1) / at.count);
        };
        auto j = job_of(how);
        j.pipeline.stages = stages;
        j.pipeline.recompute = recompute;
        auto p = pipeline::open(j, options).value();
        for (std::uint64_t step = 0; step < 4; ++step)
          CHECK(p->step(batch_of(step)).value().loss == plain.losses[step]);
        CHECK(p->finish().ok());
      }
    }
  }
}

}  // namespace rrfp::testing
