/// Properties of all model families and configurations.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <catch2/catch.hpp>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/job/model_rules.hpp>
#include <rrfp/torch/model.hpp>

#include "loaded_microbatch.hpp"
#include "pipeline.hpp"
#include "plain_loop.hpp"
#include "small_model.hpp"

namespace rrfp::compute::test {

namespace {

constexpr std::int64_t patch = 4;
constexpr std::int64_t image_token = 60;

job::model_options llama() {
  auto m = small_model();
  m.family = job::architecture::llama;
  m.kv_heads = 2;
  m.feed_forward = 48;
  m.rope_scaling = {.factor = 4, .original_context = 8};
  return m;
}

job::model_options qwen3() {
  auto m = llama();
  m.family = job::architecture::qwen3;
  m.head_width = 12;
  m.rope_scaling = {};
  m.tied_head = true;
  return m;
}

job::model_options with_images(job::model_options m) {
  m.vision.layers = 3;
  m.vision.hidden = 16;
  m.vision.heads = 2;
  m.vision.patch = patch;
  m.vision.image_size = 8;
  m.vision.image_token = image_token;
  m.context = 64;
  return m;
}

at::Generator keyed(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

/// Sequences of different lengths without padding, and 0 to 3 images of different sizes. The second
/// microbatch has no image at all.
class mixed_source final : public batch_source {
 public:
  explicit mixed_source(std::uint32_t microbatches, bool images = true)
      : microbatches_(microbatches), images_(images) {}

  microbatch load(step_id step, microbatch_id mb) const override {
    auto generator = keyed(1000 * step.value() + mb.value() + 1);
    microbatch batch;
    std::vector<std::int64_t> ids;
    for (std::uint32_t s = 0; s < 2 + mb.value() % 2; ++s) {
      const auto begin = ids.size();
      const auto words = at::randint(50, {3 + (5 * s + mb.value()) % 7}, generator, at::kLong);
      ids.insert(ids.end(), words.const_data_ptr<std::int64_t>(),
                 words.const_data_ptr<std::int64_t>() + words.numel());
      if (images_ && mb.value() != 1 && s < 2) {
        const std::int64_t rows = 1 + (s + mb.value()) % 3, columns = 2 - s % 2;
        batch.images.push_back(at::randn({3, rows * patch, columns * patch}, generator));
        ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                   static_cast<std::size_t>(rows * columns), image_token);
      }
      batch.lengths.push_back(static_cast<std::int64_t>(ids.size() - begin));
    }
    batch.inputs = at::tensor(ids, at::kLong);
    batch.targets = batch.inputs.roll(-1);
    batch.targets.masked_fill_(batch.targets.eq(image_token), ignored_target);
    batch.tokens = batch.targets.ne(ignored_target).sum().item<std::int64_t>();
    return batch;
  }

  std::int64_t step_tokens(step_id step) const override {
    std::int64_t sum = 0;
    for (std::uint32_t mb = 0; mb < microbatches_; ++mb)
      sum += load(step, microbatch_id{mb}).tokens;
    return sum;
  }

 private:
  std::uint32_t microbatches_;
  bool images_;
};

/// The sum of the losses of a microbatch, by the whole model in one chunk.
double loss_of(const job::model_options& m, const microbatch& mb) {
  const auto whole = make_model_chunk(m, nth_part(m, 0, 1), 1).value();
  loaded_microbatch view(mb);
  forward_input in;
  in.input = mb.inputs;
  in.targets = mb.targets;
  in.batch = &view;
  return whole->forward(in).item<double>();
}

microbatch part_of(const microbatch& mb, std::int64_t first, std::int64_t count) {
  microbatch part;
  part.inputs = mb.inputs.narrow(0, first, count).clone();
  part.targets = mb.targets.narrow(0, first, count).clone();
  part.lengths = {count};
  part.tokens = part.targets.ne(ignored_target).sum().item<std::int64_t>();
  return part;
}

}  // namespace

TEST_CASE("every family trains to the bits of a plain loop, for every number of stages and order") {
  auto model = GENERATE(llama(), qwen3(), with_images(small_model()), with_images(qwen3()));
  const bool sees = model.vision.layers > 0;
  const std::uint32_t microbatches = 3;
  const auto data = std::make_shared<mixed_source>(microbatches, sees);
  const auto plain = train_plainly(model, small_train(), microbatches, *data, 3);
  for (const auto& shape : {pipeline_shape{1, 1, microbatches, placement::linear},
                            pipeline_shape{2, 1, microbatches, placement::linear},
                            pipeline_shape{2, 2, microbatches, placement::v}}) {
    for (const auto backward : {split::fused, split::split, split::mixed}) {
      INFO(shape.stages << " stages x " << shape.chunks << " chunks, images " << sees);
      pipeline_options options;
      options.backward = backward;
      options.order_seed = 7 + shape.stages;
      const auto got = train_in_stages(model, small_train(), shape, data, 3, options);
      CHECK(got.losses == plain.losses);
      REQUIRE(got.weights.size() == plain.weights.size());
      for (const auto& [name, value] : plain.weights) {
        INFO(name);
        CHECK(at::equal(got.weights.at(name), value));
      }
    }
  }
}

TEST_CASE("attention does not cross sequences of a microbatch") {
  auto model = GENERATE(small_model(), llama(), qwen3());
  model.dropout = 0;
  const mixed_source source(1, false);
  const auto all = source.load(step_id{0}, microbatch_id{1});
  double apart = 0;
  std::int64_t first = 0;
  for (const auto length : all.lengths) {
    apart += loss_of(model, part_of(all, first, length));
    first += length;
  }
  CHECK(loss_of(model, all) == Approx(apart).epsilon(1e-6));
}

TEST_CASE("a text's loss depends on its images, and on their order") {
  auto model = with_images(llama());
  model.dropout = 0;
  const mixed_source source(1);
  auto mb = source.load(step_id{0}, microbatch_id{0});
  REQUIRE(mb.images.size() == 2);
  const auto seen = loss_of(model, mb);
  mb.images[0] = mb.images[0].neg();
  CHECK(loss_of(model, mb) != Approx(seen).epsilon(1e-6));
}

TEST_CASE("a text whose image tokens do not match its images is refused") {
  const auto model = with_images(llama());
  const mixed_source source(1);
  auto mb = source.load(step_id{0}, microbatch_id{0});
  mb.images.pop_back();
  CHECK_THROWS_WITH(loss_of(model, mb),
                    Catch::Contains("image tokens") && Catch::Contains("patches"));
  mb = source.load(step_id{0}, microbatch_id{0});
  mb.images[0] = at::zeros({3, 7, 8});
  CHECK_THROWS_WITH(loss_of(model, mb),
                    Catch::Contains("[3, 7, 8]") && Catch::Contains("vision.patch = 4"));
}

TEST_CASE("recomputed activations change memory, not bits") {
  const auto model = GENERATE(small_model(), with_images(qwen3()));
  const bool sees = model.vision.layers > 0;
  const auto data = std::make_shared<mixed_source>(3, sees);
  const pipeline_shape shape{2, 1, 3, placement::linear};
  const auto kept = train_in_stages(model, small_train(), shape, data, 2);
  pipeline_options options;
  options.recompute = true;
  const auto again = train_in_stages(model, small_train(), shape, data, 2, options);
  CHECK(again.losses == kept.losses);
  for (const auto& [name, value] : kept.weights) CHECK(at::equal(again.weights.at(name), value));
}

TEST_CASE("bfloat16 computes narrow and keeps weights wide, with the same bits in every order") {
  auto model = GENERATE(small_model(), with_images(qwen3()));
  model.dropout = 0;
  const bool sees = model.vision.layers > 0;
  const std::uint32_t microbatches = 3;
  const auto data = std::make_shared<mixed_source>(microbatches, sees);
  const auto wide = train_plainly(model, small_train(), microbatches, *data, 3);
  model.precision = job::precision_kind::bf16;
  const auto plain = train_plainly(model, small_train(), microbatches, *data, 3);
  for (std::size_t i = 0; i < wide.losses.size(); ++i) {
    CHECK(plain.losses[i] == Approx(wide.losses[i]).epsilon(0.02));
    CHECK(plain.losses[i] != wide.losses[i]);
  }
  for (const auto& [name, value] : plain.weights) CHECK(value.scalar_type() == at::kFloat);
  for (const auto recompute : {false, true}) {
    pipeline_options options;
    options.order_seed = 3;
    options.recompute = recompute;
    const auto got = train_in_stages(model, small_train(), {3, 1, microbatches, placement::linear},
                                     data, 3, options);
    CHECK(got.losses == plain.losses);
    for (const auto& [name, value] : plain.weights) {
      INFO(name);
      CHECK(at::equal(got.weights.at(name), value));
    }
  }
  pipeline p(model, small_train(), {2, 1, microbatches, placement::linear}, data);
  p.stage(0).begin_step(step_id{0});
  launch l;
  l.what = {task_kind::forward, microbatch_id{0}, chunk_id{0}};
  CHECK(p.stage(0).run(l, {}).type == dtype::bfloat16);
}

TEST_CASE("the estimate knows every family's parameters, activations and pending gradients") {
  auto model = GENERATE(llama(), qwen3(), with_images(small_model()), with_images(qwen3()));
  model.dropout = 0;
  model.precision = GENERATE(job::precision_kind::fp32, job::precision_kind::bf16);
  const bool sees = model.vision.layers > 0;
  const bool recompute = GENERATE(false, true);
  const auto data = std::make_shared<mixed_source>(1, sees);
  const pipeline_shape shape{3, 1, 1, placement::linear};
  const auto sizes = data->layout(step_id{0}, microbatch_id{0});
  const auto expected =
      estimate(model, sizes, job::even_cut(job::all_layers_of(model), 3), 1, recompute);
  pipeline_options options;
  options.recompute = recompute;
  pipeline p(model, small_train(), shape, data, options);
  tensor_buffer flowing;
  for (std::uint32_t s = 0; s < 3; ++s) {
    INFO("stage " << s << ", images " << sees << ", recompute " << recompute);
    const auto chunk = make_model_chunk(model, nth_part(model, s, 3), 1).value();
    std::uint64_t elements = 0;
    for (const auto& parameter : chunk->parameters())
      if (parameter.tied != tie::copy)
        elements += static_cast<std::uint64_t>(parameter.value.numel());
    CHECK(expected[s].parameters == elements);

    p.stage(s).begin_step(step_id{0});
    launch l;
    l.what = {task_kind::forward, microbatch_id{0}, chunk_id{0}};
    flowing = p.stage(s).run(l, std::move(flowing));
    if (s < 2) CHECK(flowing.bytes() == expected[s].boundary_bytes);
    CHECK(static_cast<double>(p.stage(s).meter().current()) ==
          Approx(static_cast<double>(expected[s].activation_bytes)).epsilon(0.05).margin(64));
  }
  for (std::uint32_t s = 3; s-- > 0;) {
    INFO("stage " << s << ", images " << sees << ", recompute " << recompute);
    launch l;
    l.what = {task_kind::backward, microbatch_id{0}, chunk_id{0}};
    flowing = p.stage(s).run(l, std::move(flowing));
    CHECK(static_cast<double>(p.stage(s).meter().current()) ==
          Approx(static_cast<double>(expected[s].pending_weight_bytes)).epsilon(0.05).margin(64));
  }
}

TEST_CASE("a step whose microbatches have no image leaves the encoder without gradients") {
  const auto model = with_images(llama());
  const auto data = std::make_shared<mixed_source>(2, false);
  pipeline p(model, small_train(), {3, 1, 2, placement::linear}, data);
  p.run_tasks(step_id{0});
  CHECK(p.stage(0).squared_norms().empty());
  CHECK(!p.stage(1).squared_norms().empty());
  p.finish(1e-2);
}

}  // namespace rrfp::compute::test
