#include <catch2/catch.hpp>

#include <rrfp/study/pipeline_cost.hpp>
#include <rrfp/study/presets.hpp>

namespace rrfp::study {

using namespace workload;

namespace {

/// A machine whose memory and links cost no time: only FLOPs count.
machine arithmetic() {
  machine m;
  m.tflops = 1;
  m.memory_gb_s = m.within_gb_s = m.between_gb_s = 1e21;
  m.within_us = m.between_us = 0;
  m.efficiency = 1;
  return m;
}

pipeline_cost made(std::string_view name, layout l, const machine& on = machine{}) {
  const auto cost = pipeline_cost::make(*preset(name), on, l);
  INFO((cost ? "" : cost.message()));
  REQUIRE(cost.ok());
  return *cost;
}

double total_ms(const pipeline_cost& p, std::uint32_t images) {
  double all = 0;
  for (std::uint32_t s = 0; s < p.arrangement().stages; ++s)
    all += p.stage(stage_id{s}, {p.arrangement().samples, images}).all_ms();
  return all;
}

}  // namespace

TEST_CASE(
    "F, B and W of GPT-3 Large are the closed form of Narayanan et al. without recomputation") {
  // 72 s l h^2 (1 + s / (12 h) * 1/2 + V / (12 l h)), the middle term halved by the causal mask.
  const auto p = made("gpt3-large", {.stages = 1}, arithmetic());
  constexpr double s = 2048, l = 24, h = 1536, v = 50257;
  const auto flops = 72 * s * l * h * h * (1 + s / (12 * h) + v / (12 * l * h));
  CHECK(total_ms(p, 0) == Approx(flops / 1e12 * 1e3));
}

TEST_CASE(
    "B and W without attention cost as much as F; attention costs twice as much in B and nothing "
    "in W") {
  const auto m = *preset("gpt3-large");
  const auto c = cost_of(m, part_kind::decoder_layer, {1, 0}, 1, arithmetic());
  const auto attention_ms = attention_flops_of_squares(m.text.layer, 2048.0 * 2048) / 1e9;
  CHECK(c.backward_ms - c.forward_ms == Approx(attention_ms));
  CHECK(c.forward_ms - c.weight_ms == Approx(attention_ms));
  const auto head = cost_of(m, part_kind::head, {1, 0}, 1, arithmetic());
  CHECK(head.forward_ms == head.backward_ms);
  CHECK(head.forward_ms == head.weight_ms);
}

TEST_CASE("more images or samples never cost less, and more images cost the encoder more") {
  for (const auto name : preset_names()) {
    if (!preset(name)->images) continue;
    const auto p = made(name, {.stages = 8, .mean_images = 2});
    for (std::uint32_t n = 0; n < 4; ++n) {
      for (std::uint32_t s = 0; s < 8; ++s) {
        const auto& less = p.stage(stage_id{s}, {1, n});
        const auto& more = p.stage(stage_id{s}, {1, n + 1});
        CHECK(less.forward_ms <= more.forward_ms);
        CHECK(less.backward_ms <= more.backward_ms);
        CHECK(less.weight_ms <= more.weight_ms);
        CHECK(less.activation_bytes <= more.activation_bytes);
      }
      CHECK(p.stage(stage_id{0}, {1, n}).all_ms() < p.stage(stage_id{0}, {1, n + 1}).all_ms());
      CHECK(p.stage(stage_id{7}, {1, n}).all_ms() == p.stage(stage_id{7}, {1, n + 1}).all_ms());
    }
    CHECK(total_ms(made(name, {.stages = 8, .samples = 2}), 2) > total_ms(p, 2));
  }
}

TEST_CASE("longer samples cost more, and attention grows with their square") {
  auto m = *preset("gpt3-large");
  const auto at = [&](std::uint32_t tokens) {
    m.sequence_tokens = tokens;
    return cost_of(m, part_kind::decoder_layer, {1, 0}, 1, arithmetic());
  };
  CHECK(at(4096).weight_ms == Approx(2 * at(2048).weight_ms));
  const auto square = [&](std::uint32_t n) { return at(n).forward_ms - at(n).weight_ms; };
  CHECK(square(4096) == Approx(4 * square(2048)));
}

TEST_CASE("an encoder is idle without images, and its cost grows with the images") {
  const auto m = *preset("llama3-8b-vit-5b");
  const auto at = [&](std::uint32_t images) {
    return cost_of(m, part_kind::encoder_layer, {1, images}, 1, arithmetic()).all_ms();
  };
  CHECK(at(0) == 0);
  CHECK(at(4) == Approx(4 * at(1)));
}

TEST_CASE("tp ranks share the FLOPs evenly and add all-reduces") {
  const auto m = *preset("llama3-8b-vit-5b");
  const auto of = [&](std::uint32_t tp, const machine& on) {
    return cost_of(m, part_kind::decoder_layer, {1, 2}, tp, on);
  };
  CHECK(of(2, arithmetic()).all_ms() == Approx(of(1, arithmetic()).all_ms() / 2));
  const machine real;
  const auto bytes = 1024.0 * 4096 * 2;
  CHECK(of(2, real).forward_ms ==
        Approx(of(1, real).forward_ms / 2 + 2e3 * all_reduce_s(real.within(), bytes, 2)));
  CHECK(of(2, real).weight_ms == Approx(of(1, real).weight_ms / 2));
  CHECK(of(2, real).activation_bytes < of(1, real).activation_bytes);
  CHECK(of(2, real).activation_bytes > of(1, real).activation_bytes / 2);
}

TEST_CASE("a layer with few FLOPs is bound by memory bandwidth") {
  auto slow_memory = arithmetic();
  slow_memory.memory_gb_s = 1e-9;
  const auto m = *preset("gpt3-large");
  const auto c = cost_of(m, part_kind::decoder_layer, {1, 0}, 1, slow_memory);
  const auto weights = 2.0 * 12 * 1536 * 1536;
  CHECK(c.forward_ms == Approx(1e3 * (weights + 2 * c.activation_bytes)));
  CHECK(c.weight_ms == Approx(1e3 * (4 * weights + c.activation_bytes)));
}

TEST_CASE("the fixed time of a layer adds to F, B and W of every layer, but not of the head") {
  auto slow = arithmetic();
  slow.layer_us = 0.25e6;
  const auto m = *preset("qwen3-4b-vit-big");
  const auto added = [&](part_kind part, std::uint32_t images) {
    auto c = cost_of(m, part, {1, images}, 2, slow);
    const auto without = cost_of(m, part, {1, images}, 2, arithmetic());
    CHECK(c.forward_ms - without.forward_ms == Approx(c.weight_ms - without.weight_ms));
    CHECK(c.forward_ms - without.forward_ms == Approx(c.backward_ms - without.backward_ms));
    return c.forward_ms - without.forward_ms;
  };
  CHECK(added(part_kind::decoder_layer, 0) == Approx(250));
  CHECK(added(part_kind::encoder_layer, 2) == Approx(250));
  CHECK(added(part_kind::encoder_layer, 0) == Approx(0));
  CHECK(added(part_kind::head, 2) == Approx(0));
}

TEST_CASE("a microbatch of texts of several lengths costs the sum of its samples") {
  const auto m = *preset("qwen3-1.7b-vit-h");
  const auto of = [&](double tokens, double squares) {
    return cost_of(m, part_kind::decoder_layer, {.tokens = tokens, .token_squares = squares}, 2,
                   arithmetic());
  };
  const auto both = of(400, 100 * 100 + 300 * 300);
  const auto one = of(100, 100 * 100), other = of(300, 300 * 300);
  CHECK(both.forward_ms == Approx(one.forward_ms + other.forward_ms));
  CHECK(both.backward_ms == Approx(one.backward_ms + other.backward_ms));
  CHECK(both.weight_ms == Approx(one.weight_ms + other.weight_ms));
  CHECK(both.activation_bytes == Approx(one.activation_bytes + other.activation_bytes));
  // Attention grows with the square, the rest with the length.
  CHECK(other.weight_ms == Approx(3 * one.weight_ms));
  CHECK(other.forward_ms - other.weight_ms == Approx(9 * (one.forward_ms - one.weight_ms)));
  const auto p = made("qwen3-1.7b-vit-h", {.stages = 16, .mean_images = 2});
  const load l{.samples = 1, .images = 1, .tokens = 300, .token_squares = 300 * 300};
  CHECK(p.message_bytes(stage_id{14}, l) == 300.0 * 2048 * 2);
}

TEST_CASE("a mixture of experts computes with the active parameters") {
  for (const auto name : {"qwen3-30b-a3b", "mixtral-8x7b"}) {
    const auto m = *preset(name);
    const auto& b = m.text.layer;
    const auto of = [&](std::uint32_t tp, std::vector<double> shares) {
      return cost_of(m, part_kind::decoder_layer, {.expert_shares = std::move(shares)}, tp,
                     arithmetic());
    };
    const auto tokens = double{1} * m.sequence_tokens;
    const auto active_ms = 1e3 * matrix_flops(active_parameters(b), tokens) / 1e12;
    CHECK(of(1, {}).weight_ms == Approx(active_ms));
    CHECK(of(1, {}).forward_ms ==
          Approx(active_ms + attention_flops_of_squares(b, tokens * tokens) / 1e9));
    CHECK(of(2, {}).weight_ms == Approx(active_ms / 2));
    CHECK(of(1, {}).activation_bytes ==
          Approx(tokens * (activation_bytes_per_token(b, 1) +
                           b.experts_per_token * activation_bytes_per_routed_token(b))));
    // Where only FLOPs cost time, the shares matter only between ranks.
    std::vector<double> uneven(b.experts, 0.5 / (b.experts - 1));
    uneven[0] = 0.5;
    CHECK(of(1, uneven).weight_ms == Approx(of(1, {}).weight_ms));
    const auto routed_ms =
        1e3 * b.experts_per_token * matrix_flops(feed_forward_parameters(b), tokens) / 1e12;
    const auto of_first_rank = 0.5 + 0.5 * (b.experts / 2 - 1) / (b.experts - 1);
    CHECK(of(2, uneven).weight_ms ==
          Approx((active_ms - routed_ms) / 2 + of_first_rank * routed_ms));
  }
}

TEST_CASE("each expert with tokens reads its weights, however few they are") {
  auto slow_memory = arithmetic();
  slow_memory.tflops = 1e18;
  slow_memory.memory_gb_s = 1;
  const auto m = *preset("mixtral-8x7b");
  const auto of = [&](std::vector<double> shares) {
    return cost_of(m, part_kind::decoder_layer,
                   {.tokens = 1, .token_squares = 1, .expert_shares = std::move(shares)}, 1,
                   slow_memory)
        .forward_ms;
  };
  const auto weights_ms = 2.0 * static_cast<double>(feed_forward_parameters(m.text.layer)) / 1e6;
  std::vector<double> one(8);
  one[3] = 1;
  std::vector<double> three(8);
  three[0] = three[3] = three[7] = 1.0 / 3;
  CHECK(of(three) - of(one) == Approx(2 * weights_ms));
}

TEST_CASE("the layers of a mixture differ by their own shares of the experts") {
  const auto p = made("mixtral-8x7b", {.stages = 32, .tp = 2, .cut = {job::cut_kind::layers, {}}});
  load l;
  l.expert_shares.assign(std::size_t{32} * 8, 1.0 / 8);
  const auto even = p.stage(stage_id{5}, l).all_ms();
  CHECK(even == Approx(p.stage(stage_id{5}, {}).all_ms()));
  for (std::size_t e = 0; e < 4; ++e) {
    l.expert_shares[5 * 8 + e] = 0.24;
    l.expert_shares[5 * 8 + 4 + e] = 0.01;
  }
  CHECK(p.stage(stage_id{5}, l).all_ms() > 1.5 * even);
  CHECK(p.stage(stage_id{4}, l).all_ms() == Approx(even));
}

TEST_CASE("stages hold the whole model, encoder first, and are roughly balanced") {
  const auto p = made("llama3-8b-vit-5b", {.stages = 16, .mean_images = 2});
  const auto parts = parts_of(*preset("llama3-8b-vit-5b"));
  CHECK(p.cuts().front() == 0);
  CHECK(p.cuts().back() == parts.size());
  CHECK(parts.front() == part_kind::encoder_layer);
  CHECK(parts.back() == part_kind::head);
  const auto mean = total_ms(p, 2) / 16;
  for (std::uint32_t s = 0; s < 16; ++s) CHECK(p.stage(stage_id{s}, {1, 2}).all_ms() < 1.35 * mean);
  CHECK(total_ms(p, 3) == Approx(total_ms(made("llama3-8b-vit-5b", {.stages = 1}), 3)));
}

TEST_CASE("a cut by layers divides the layers alone; the head comes on top of the last stage") {
  const auto gpt = made("gpt3-large", {.stages = 8, .cut = {job::cut_kind::layers, {}}});
  // Embedding, 24 decoder layers, head.
  CHECK(gpt.cuts() == std::vector<std::uint32_t>{0, 4, 7, 10, 13, 16, 19, 22, 26});
  const auto parts = parts_of(*preset("qwen3-4b-vit-big"));
  const auto p =
      made("qwen3-4b-vit-big", {.stages = 8, .mean_images = 2, .cut = {job::cut_kind::layers, {}}});
  for (std::uint32_t s = 0; s + 1 < 8; ++s) {
    const auto next = parts[p.cuts()[s + 1]];
    CHECK((next == part_kind::encoder_layer || next == part_kind::decoder_layer));
    CHECK(p.stage(stage_id{7}, {1, 2}).forward_ms > p.stage(stage_id{s}, {1, 2}).forward_ms);
  }
  CHECK(total_ms(p, 3) == Approx(total_ms(made("qwen3-4b-vit-big", {.stages = 1}), 3)));
  CHECK(p.empty_message_ms(stage_id{0}) == Approx(0.01));
}

TEST_CASE("a given cut holds the layers that it names; slow devices get fewer parts") {
  const auto given = made("gpt3-large", {.stages = 3, .cut = {job::cut_kind::given, {1, 20, 3}}});
  // The embedding, 24 layers, the head.
  CHECK(given.cuts() == std::vector<std::uint32_t>{0, 2, 22, 26});
  const auto even = made("gpt3-large", {.stages = 4});
  const auto uneven = made("gpt3-large", {.stages = 4, .speeds = {1, 1, 0.5, 1}});
  CHECK(uneven.cuts()[3] - uneven.cuts()[2] < even.cuts()[3] - even.cuts()[2]);
  const auto layers = made(
      "gpt3-large", {.stages = 4, .cut = {job::cut_kind::layers, {}}, .speeds = {1, 1, 0.5, 1}});
  CHECK(layers.cuts() ==
        made("gpt3-large", {.stages = 4, .cut = {job::cut_kind::layers, {}}}).cuts());
  // The times are those of a device of speed 1.
  CHECK(total_ms(uneven, 0) == Approx(total_ms(even, 0)));
}

TEST_CASE("messages carry patches within the encoder and tokens after it") {
  const auto p = made("qwen3-1.7b-vit-h", {.stages = 16, .mean_images = 2});
  CHECK(p.message_bytes(stage_id{0}, {1, 3}) == 3.0 * 256 * 1280 * 2);
  CHECK(p.message_bytes(stage_id{14}, {1, 3}) == 1024.0 * 2048 * 2);
  CHECK(p.message_bytes(stage_id{0}, {1, 0}) == 0);
  CHECK(p.message_ms(stage_id{0}, {1, 0}) == Approx(0.01));
}

TEST_CASE("neighbours in one group of 8 use PCIe, others share the node's adapter") {
  const machine on;
  const auto one = made("llama3-8b-vit-5b", {.stages = 16, .mean_images = 2});
  const auto bytes = one.message_bytes(stage_id{6}, {1, 2});
  CHECK(one.message_ms(stage_id{6}, {1, 2}) == Approx(1e3 * transfer_s(on.within(), bytes)));
  CHECK(one.message_ms(stage_id{7}, {1, 2}) == Approx(1e3 * transfer_s(on.between(), bytes)));
  const auto two = made("llama3-8b-vit-5b", {.stages = 16, .tp = 2, .mean_images = 2});
  const auto same = two.message_bytes(stage_id{3}, {1, 2});
  CHECK(two.message_ms(stage_id{3}, {1, 2}) == Approx(1e3 * transfer_s(on.between(), same, 2)));
}

TEST_CASE("a rank holds 18 bytes per parameter; replicas exchange gradients") {
  const auto p = made("gpt3-large", {.stages = 1});
  const auto held = 18.0 * (24 * 12 * 1536.0 * 1536 + 2 * 50257.0 * 1536 + 2048.0 * 1536);
  CHECK(p.static_bytes(stage_id{0}) == Approx(held));
  CHECK(p.gradient_exchange_ms() == 0);
  CHECK(made("gpt3-large", {.stages = 1, .replicas = 2}).gradient_exchange_ms() ==
        Approx(1e3 * (2 * 10e-6 + held / 18 * 4 / 16e9)));
}

TEST_CASE("more stages than parts or layers are refused") {
  const auto cost = pipeline_cost::make(*preset("gpt3-large"), machine{}, {.stages = 27});
  REQUIRE_FALSE(cost.ok());
  CHECK(cost.message() == "expected at most as many stages as gpt3-large has parts, 26, got 27");
  const auto of_layers = pipeline_cost::make(*preset("gpt3-large"), machine{},
                                             {.stages = 25, .cut = {job::cut_kind::layers, {}}});
  REQUIRE_FALSE(of_layers.ok());
  CHECK(of_layers.message() ==
        "expected at most as many stages as gpt3-large has layers, 24, got 25");
  const auto given = pipeline_cost::make(*preset("gpt3-large"), machine{},
                                         {.stages = 2, .cut = {job::cut_kind::given, {20, 5}}});
  REQUIRE_FALSE(given.ok());
  CHECK(given.message() == "expected all 24 layers of gpt3-large, got 25");
}

}  // namespace rrfp::study
