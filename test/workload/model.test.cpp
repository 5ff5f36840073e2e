#include <catch2/catch.hpp>

#include <rrfp/workload/model.hpp>

namespace rrfp::workload {

namespace {

/// GPT's layer: h = 64, 4 heads of 16, feed-forward width 4 h.
const block gpt{64, 4, 4, 16, 256, false, true};
/// Grouped queries and three matrices: 8 heads share 2 key and value heads.
const block llama{64, 8, 2, 8, 192, true, true};

}  // namespace

TEST_CASE("a GPT layer has 12 h^2 parameters") { CHECK(parameters(gpt) == 12 * 64 * 64); }

TEST_CASE("grouped queries shrink keys and values, a gate adds a matrix") {
  // queries and output 2 h^2, keys and values 2 h * 16, three matrices h * 192
  CHECK(parameters(llama) == 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 192);
}

TEST_CASE("a forward of a GPT layer costs 24 s h^2 + 4 s^2 h, half the square when causal") {
  constexpr double s = 100;
  constexpr double h = 64;
  CHECK(matrix_flops(parameters(gpt), s) == 24 * s * h * h);
  CHECK(attention_flops_of_squares(gpt, s * s) == 2 * s * s * h);
  auto whole = gpt;
  whole.causal = false;
  CHECK(attention_flops_of_squares(whole, s * s) == 4 * s * s * h);
}

TEST_CASE("a token keeps 8 h + 24 h / tp activation bytes in a GPT layer") {
  for (const std::uint32_t tp : {1, 2, 4})
    CHECK(activation_bytes_per_token(gpt, tp) == Approx(8.0 * 64 + 24.0 * 64 / tp));
}

TEST_CASE("an untied head and learned positions count") {
  decoder d{gpt, 3, 1000, true, 128};
  CHECK(parameters(d) == 3 * 12 * 64 * 64 + 1000 * 64 + 128 * 64);
  d.tied_head = false;
  d.positions = 0;
  CHECK(parameters(d) == 3 * 12 * 64 * 64 + 2 * 1000 * 64);
}

TEST_CASE("the projector maps the patches of a token to the decoder's width") {
  model m;
  m.text = {llama, 2, 1000, false, 0};
  CHECK(projector_parameters(m) == 0);
  m.images = encoder{gpt, 2, 100, 4};
  CHECK(projector_parameters(m) == 4 * 64 * 64 + 64 * 64);
  CHECK(parameters(*m.images) == 2 * parameters(gpt));
  CHECK(m.images->tokens_per_image() == 25);
}

}  // namespace rrfp::workload
