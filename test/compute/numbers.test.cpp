/// Computations without tensors: learning rate, clipping, estimates.
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/compute/lr_schedule.hpp>
#include <rrfp/compute/parameters.hpp>
#include <rrfp/job/model_rules.hpp>

namespace rrfp::compute::test {

TEST_CASE("the learning rate warms up linearly and decays as a cosine") {
  job::train_options t;
  t.steps = 110;
  t.warmup_steps = 10;
  t.lr = 1e-3;
  t.lr_min = 1e-4;
  CHECK(lr_of(t, step_id{0}) == Approx(1e-4));
  CHECK(lr_of(t, step_id{4}) == Approx(5e-4));
  CHECK(lr_of(t, step_id{9}) == Approx(1e-3));
  CHECK(lr_of(t, step_id{10}) == Approx(1e-3));
  CHECK(lr_of(t, step_id{60}) == Approx(5.5e-4));
  CHECK(lr_of(t, step_id{110}) == Approx(1e-4));
  CHECK(lr_of(t, step_id{1000}) == Approx(1e-4));
  t.warmup_steps = 0;
  CHECK(lr_of(t, step_id{0}) == Approx(1e-3));
  t.warmup_steps = 200;  // longer than the run
  CHECK(lr_of(t, step_id{199}) == Approx(1e-3));
}

TEST_CASE("gradients are scaled down to the clipping norm, never up") {
  const std::vector<parameter_norm> norms{{{0, 0}, 9.0}, {{1, 0}, 16.0}};
  CHECK(clip_gradients(norms, 10.0)->norm == Approx(5.0));
  CHECK(clip_gradients(norms, 10.0)->scale == 1.0);
  CHECK(clip_gradients(norms, 1.0)->scale == Approx(0.2).epsilon(1e-6));
  CHECK(clip_gradients(norms, 0.0)->scale == 1.0);
  CHECK(clip_gradients({}, 1.0)->norm == 0.0);
}

TEST_CASE("the norm has the same bits whatever order the stages report in") {
  std::vector<parameter_norm> norms;
  for (std::uint32_t i = 0; i < 100; ++i) norms.push_back({{i / 7, i % 7}, std::exp(-0.37 * i)});
  const auto expected = clip_gradients(norms, 1.0)->norm;
  std::vector<parameter_norm> reversed(norms.rbegin(), norms.rend());
  CHECK(clip_gradients(reversed, 1.0)->norm == expected);
  double squared = 0;
  for (const auto& p : reversed) squared += p.squared;
  CHECK(std::sqrt(squared) != expected);  // the order does matter
}

TEST_CASE("a gradient that is not finite is an error") {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto clipped = clip_gradients({{{0, 0}, 1.0}, {{0, 1}, nan}}, 1.0);
  REQUIRE(!clipped.ok());
  CHECK_THAT(clipped.message(), Catch::Contains("nan"));
}

TEST_CASE("the hash of a model depends on every parameter, but not on the order of reports") {
  const std::vector<parameter_hash> a{{{0, 0}, 11}, {{0, 1}, 12}, {{1, 0}, 13}};
  const std::vector<parameter_hash> b{{{1, 0}, 13}, {{0, 1}, 12}, {{0, 0}, 11}};
  const std::vector<parameter_hash> swapped{{{0, 0}, 12}, {{0, 1}, 11}, {{1, 0}, 13}};
  CHECK(hash_of_model(a) == hash_of_model(b));
  CHECK(hash_of_model(a) != hash_of_model(swapped));
}

TEST_CASE("layers are divided evenly, with the remainder in the earlier parts") {
  CHECK(job::even_cut(8, 4) == std::vector<std::uint32_t>{2, 2, 2, 2});
  CHECK(job::even_cut(10, 4) == std::vector<std::uint32_t>{3, 3, 2, 2});
  CHECK(layers_of({3, 3, 1, 3}, virtual_stage_id{0}) == layer_range{0, 3});
  CHECK(layers_of({3, 3, 1, 3}, virtual_stage_id{2}) == layer_range{6, 1});
  CHECK(layers_of({3, 3, 1, 3}, virtual_stage_id{3}) == layer_range{7, 3});
}

TEST_CASE("the estimate of the whole model does not depend on its cut") {
  job::model_options m;
  m.layers = 6;
  const job::data_options d;
  const auto whole = estimate(m, expected_layout(m, d), {6});
  const auto cut = estimate(m, expected_layout(m, d), {1, 3, 1, 1});
  REQUIRE(whole.size() == 1);
  REQUIRE(cut.size() == 4);
  chunk_estimate sum;
  for (const auto& e : cut) {
    sum.parameters += e.parameters;
    sum.forward_flops += e.forward_flops;
    sum.backward_flops += e.backward_flops;
    sum.weight_flops += e.weight_flops;
    sum.activation_bytes += e.activation_bytes;
  }
  CHECK(sum.parameters == whole[0].parameters);
  CHECK(sum.forward_flops == Approx(whole[0].forward_flops));
  CHECK(sum.backward_flops == Approx(whole[0].backward_flops));
  CHECK(sum.weight_flops == Approx(whole[0].weight_flops));
  CHECK(sum.activation_bytes == whole[0].activation_bytes);
  // [4, 128, 128] floats between any two.
  CHECK(cut[0].boundary_bytes == 4 * 128 * 128 * 4);
  CHECK(cut[3].boundary_bytes == 0);
  // Stage 0 of the V holds both ends of the model.
  const pipeline_shape v{2, 2, 4, placement::v};
  CHECK(slot_bytes(cut, v, stage_id{0}) ==
        std::max(cut[0].activation_bytes, cut[0].pending_weight_bytes) +
            std::max(cut[3].activation_bytes, cut[3].pending_weight_bytes));
}

}  // namespace rrfp::compute::test
