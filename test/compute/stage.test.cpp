#include <cmath>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/torch/model.hpp>
#include <rrfp/torch/stage_compute.hpp>

#include "pipeline.hpp"
#include "small_model.hpp"

namespace rrfp::compute::test {

namespace {

const pipeline_shape one_stage{1, 1, 2, placement::linear};

std::unique_ptr<stage_compute> stage_of(std::unique_ptr<stage_module> module,
                                        std::shared_ptr<const batch_source> data,
                                        const pipeline_shape& shape = one_stage) {
  std::vector<std::unique_ptr<stage_module>> chunks;
  chunks.push_back(std::move(module));
  return stage_compute::make({shape, stage_id{0}, small_train()}, std::move(chunks),
                             std::move(data))
      .value();
}

std::unique_ptr<stage_module> whole_model() {
  return make_model_chunk(small_model(), nth_part(small_model(), 0, 1), 1).value();
}

launch forward_of(std::uint32_t mb) {
  launch l;
  l.what = {task_kind::forward, microbatch_id{mb}, chunk_id{0}};
  return l;
}

/// The error that `work` throws.
template <class Work>
compute_error caught(Work work) {
  try {
    work();
  } catch (const compute_error& e) {
    return e;
  }
  return compute_error(compute_fault::library, "nothing was thrown");
}

/// A user's model with one parameter of each kind: scale * x + shift, where
/// `scale` is an ordinary parameter and `frozen` never changes.
class users_module final : public stage_module {
 public:
  users_module() {
    parameters_.push_back({"scale", at::ones({1}).requires_grad_(), tie::none});
    parameters_.push_back({"frozen", at::ones({1}), tie::none});
    parameters_.push_back({"unused", at::ones({1}).requires_grad_(), tie::none});
  }
  std::span<const parameter> parameters() const override { return parameters_; }
  at::Tensor forward(const forward_input& in) override {
    const auto x = in.input.to(at::kFloat) * parameters_[0].value * parameters_[1].value;
    return (x - in.targets).square().sum();
  }

 private:
  std::vector<parameter> parameters_;
};

class broken_source final : public batch_source {
 public:
  microbatch load(step_id, microbatch_id) const override {
    throw std::runtime_error("the disk is gone\nwith details");
  }
  std::int64_t step_tokens(step_id) const override { return 1; }
};

/// A source of ids outside the vocabulary.
class wrong_source final : public batch_source {
 public:
  microbatch load(step_id, microbatch_id) const override {
    return {at::full({1, 4}, 1000, at::kLong), at::zeros({1, 4}, at::kLong), 4};
  }
  std::int64_t step_tokens(step_id) const override { return 8; }
};

/// A device that has memory for two microbatches.
class greedy_module final : public stage_module {
 public:
  greedy_module() { parameters_.push_back({"scale", at::ones({1}).requires_grad_(), tie::none}); }
  std::span<const parameter> parameters() const override { return parameters_; }
  at::Tensor forward(const forward_input& in) override {
    if (in.mb == microbatch_id{1})
      C10_THROW_ERROR(OutOfMemoryError, "tried to allocate 2 GiB\nand a page of advice");
    return (in.input.to(at::kFloat) * parameters_[0].value).sum();
  }

 private:
  std::vector<parameter> parameters_;
};

}  // namespace

TEST_CASE("a loss that is not finite names stage, microbatch and step") {
  auto module = whole_model();
  {
    const at::NoGradGuard no_grad;
    module->parameters().back().value[0][0] = std::nanf("");
  }
  const auto stage = stage_of(std::move(module), std::make_shared<uneven_source>(2));
  stage->begin_step(step_id{7});
  const auto e = caught([&] { stage->run(forward_of(1), {}); });
  CHECK(e.fault() == compute_fault::non_finite_loss);
  CHECK_THAT(e.what(), Catch::Contains("stage 0") && Catch::Contains("F1") &&
                           Catch::Contains("step 8") && Catch::Contains("microbatch 1") &&
                           Catch::Contains("nan"));
}

TEST_CASE("an exception of a library becomes a compute_error of one line") {
  const auto wrong = stage_of(whole_model(), std::make_shared<wrong_source>());
  wrong->begin_step(step_id{3});
  const auto e = caught([&] { wrong->run(forward_of(0), {}); });
  CHECK(e.fault() == compute_fault::library);
  CHECK_THAT(e.what(), Catch::Contains("stage 0, F0 of step 4") && Catch::Contains("index"));
  CHECK_THAT(e.what(), !Catch::Contains("\n"));

  const auto broken = stage_of(whole_model(), std::make_shared<broken_source>());
  broken->begin_step(step_id{0});
  const auto of_data = caught([&] { broken->run(forward_of(0), {}); });
  CHECK(of_data.fault() == compute_fault::data);
  CHECK_THAT(of_data.what(), Catch::Contains("the disk is gone") && !Catch::Contains("details"));

  const auto first =
      stage_of(make_model_chunk(small_model(), nth_part(small_model(), 0, 2), 1).value(),
               std::make_shared<uneven_source>(2), {2, 1, 2, placement::linear});
  first->begin_step(step_id{0});
  first->run(forward_of(0), {});
  launch backward;
  backward.what = {task_kind::backward, microbatch_id{0}, chunk_id{0}};
  const auto of_shape = caught([&] { first->run(backward, to_buffer(at::ones({3, 3}))); });
  CHECK_THAT(of_shape.what(), Catch::Contains("stage 0, B0 of step 1"));
}

TEST_CASE("out of memory names the task, the slots held and what to lower") {
  const auto stage =
      stage_of(std::make_unique<greedy_module>(), std::make_shared<uneven_source>(2));
  stage->begin_step(step_id{4});
  stage->run(forward_of(0), {});
  const auto e = caught([&] { stage->run(forward_of(1), {}); });
  CHECK(e.fault() == compute_fault::memory);
  CHECK(std::string{e.what()} ==
        "stage 0, F1 of step 5: cpu is out of memory with 2 slots held (tried to allocate 2 GiB); "
        "lower dispatch.slots, data.microbatch_size or data.max_tokens, or set pipeline.recompute "
        "= true");
}

TEST_CASE("out of memory in an input or a group is reported like that of a task") {
  class starved_module final : public stage_module {
   public:
    std::span<const parameter> parameters() const override { return {}; }
    at::Tensor forward(const forward_input&) override {
      throw group_error("ncclAllReduce on device 0, rank 0 of 2: out of memory");
    }
  };
  const auto stage =
      stage_of(std::make_unique<starved_module>(), std::make_shared<uneven_source>(2));
  stage->begin_step(step_id{4});
  const auto of_group = caught([&] { stage->run(forward_of(0), {}); });
  CHECK(of_group.fault() == compute_fault::memory);
  CHECK_THAT(of_group.what(), Catch::Contains("stage 0, F0 of step 5: cpu is out of memory with 1 "
                                              "slots held (ncclAllReduce on device 0"));
  const auto of_input =
      caught([&] { stage->fail_input("the input of microbatch 1", "out of memory"); });
  CHECK(std::string{of_input.what()} ==
        "stage 0, the input of microbatch 1 of step 5: cpu is out of memory with 1 slots held (out "
        "of memory); lower dispatch.slots, data.microbatch_size or data.max_tokens, or set "
        "pipeline.recompute = "
        "true");
  const auto other =
      caught([&] { stage->fail_input("the input of microbatch 1", "it is broken"); });
  CHECK(other.fault() == compute_fault::library);
}

TEST_CASE("a sequence longer than the context is refused with both lengths") {
  auto model = small_model();
  model.context = 8;
  const auto stage = stage_of(make_model_chunk(model, nth_part(model, 0, 1), 1).value(),
                              std::make_shared<uneven_source>(2));
  stage->begin_step(step_id{0});
  const auto e = caught([&] { stage->run(forward_of(0), {}); });
  CHECK_THAT(e.what(), Catch::Contains("16") && Catch::Contains("model.context = 8"));
}

TEST_CASE("invalid models are refused") {
  const auto refused = [](auto change) {
    auto model = small_model();
    change(model);
    const auto made = make_model_chunk(model, {0, 1}, 1);
    return made.ok() ? std::string("made") : made.message();
  };
  CHECK_THAT(refused([](auto& m) { m.heads = 5; }),
             Catch::Contains("a multiple of model.heads = 5, got 32"));
  CHECK_THAT(refused([](auto& m) { m.dropout = 1.0; }), Catch::Contains("a number in [0, 1)"));
  CHECK_THAT(refused([](auto& m) { m.vocabulary = 0; }), Catch::Contains("at least 1"));

  CHECK(!stage_compute::make({one_stage, stage_id{0}, small_train()}, {}, nullptr).ok());
  CHECK(!stage_compute::make({one_stage, stage_id{1}, small_train()}, {}, nullptr).ok());
}

TEST_CASE("initial weights do not depend on the number of stages") {
  const auto whole = whole_model();
  std::size_t next = 0;
  for (std::uint32_t vs = 0; vs < 3; ++vs) {
    const auto chunk = make_model_chunk(small_model(), nth_part(small_model(), vs, 3), 1).value();
    for (const auto& p : chunk->parameters()) {
      REQUIRE(next < whole->parameters().size());
      const auto& expected = whole->parameters()[next++];
      CHECK(p.name == expected.name);
      CHECK(at::equal(p.value, expected.value));
    }
  }
  CHECK(next == whole->parameters().size());
  const auto deviation = [&](const std::string& name) {
    for (const auto& p : whole->parameters()) {
      if (p.name == name) return p.value.std().item<double>();
    }
    return 0.0;
  };
  CHECK(deviation("transformer.h.0.attn.c_attn.weight") == Approx(0.02).epsilon(0.1));
  CHECK(deviation("transformer.h.3.mlp.c_proj.weight") ==
        Approx(0.02 / std::sqrt(8.0)).epsilon(0.1));
}

TEST_CASE("the estimate knows the number of parameters") {
  auto model = small_model();
  model.tied_head = GENERATE(false, true);
  const std::vector<std::uint32_t> cut{1, 2, 1};
  const auto estimates = estimate(model, expected_layout(model, {}), cut);
  for (std::uint32_t vs = 0; vs < 3; ++vs) {
    const auto chunk = make_model_chunk(model, layers_of(cut, virtual_stage_id{vs}), 1).value();
    std::uint64_t elements = 0;
    for (const auto& p : chunk->parameters()) {
      if (p.tied != tie::copy) elements += static_cast<std::uint64_t>(p.value.numel());
    }
    CHECK(estimates[vs].parameters == elements);
  }
}

TEST_CASE("a user's module trains without using the stash") {
  const auto stage = stage_of(std::make_unique<users_module>(), std::make_shared<uneven_source>(2));
  const auto scale_before = stage->weights()[0].value.item<double>();
  for (std::uint64_t step = 0; step < 2; ++step) {
    stage->begin_step(step_id{step});
    for (std::uint32_t mb = 0; mb < 2; ++mb) {
      stage->run(forward_of(mb), {});
      launch l;
      l.what = {task_kind::backward_weight, microbatch_id{mb}, chunk_id{0}};
      l.folds = {microbatch_id{mb}, 1};
      stage->run(l, {});
    }
    CHECK(stage->losses().size() == 2);
    const auto norms = stage->squared_norms();
    REQUIRE(norms.size() == 1);  // neither the frozen one nor the one that forward does not use
    CHECK(norms[0].squared > 0);
    stage->apply(1.0, 1e-2);
  }
  CHECK(stage->weights()[0].value.item<double>() != scale_before);
  CHECK(stage->weights()[1].value.item<double>() == 1.0);
  CHECK(stage->weights()[2].value.item<double>() == 1.0);
}

TEST_CASE("a misaligned input has the bits of an aligned one") {
  const pipeline_shape shape{2, 1, 1, placement::linear};
  const auto data = std::make_shared<uneven_source>(1);
  const auto loss_of = [&](bool aligned) {
    std::vector<std::unique_ptr<stage_module>> chunks;
    chunks.push_back(make_model_chunk(small_model(), nth_part(small_model(), 1, 2), 1).value());
    const auto last =
        stage_compute::make({shape, stage_id{1}, small_train()}, std::move(chunks), data).value();
    const auto room = at::linspace(-1, 1, 2 * 16 * 32 + 3);
    auto x = room.narrow(0, 0, 2 * 16 * 32).view({2 * 16, 32});
    if (!aligned) {
      auto shifted = at::empty({2 * 16 * 32 + 3});
      shifted.narrow(0, 3, 2 * 16 * 32).copy_(x.view({-1}));
      x = shifted.narrow(0, 3, 2 * 16 * 32).view({2 * 16, 32});
    }
    last->begin_step(step_id{0});
    last->run(forward_of(0), to_buffer(x));
    return last->losses().front().mean;
  };
  CHECK(loss_of(false) == loss_of(true));
}

TEST_CASE("a snapshot resumes with the same bits, and an incomplete one is refused") {
  const auto data = std::make_shared<uneven_source>(3);
  auto train = small_train();
  train.optimizer = GENERATE(job::optimizer_kind::adamw, job::optimizer_kind::sgd);
  train.momentum = 0.9;
  const pipeline_shape two{2, 1, 3, placement::linear};
  pipeline p(small_model(), train, two, data);
  const auto step = [&](pipeline& which, std::uint64_t s) {
    which.run_tasks(step_id{s});
    which.finish(1e-2);
  };
  step(p, 0);
  std::vector<named_buffer> state;
  for (std::uint32_t s = 0; s < 2; ++s) {
    for (const auto& t : p.stage(s).snapshot())
      state.push_back({t.name, to_buffer(t.value.clone())});
  }
  step(p, 1);

  pipeline other(small_model(), train, {1, 1, 3, placement::linear}, data);
  step(other, 5);  // whatever it held before is gone
  REQUIRE(other.stage(0).restore(state).ok());
  step(other, 1);
  CHECK(other.hash() == p.hash());

  const auto lacking = other.stage(0).restore(std::span(state).subspan(1));
  REQUIRE(!lacking.ok());
  CHECK_THAT(lacking.message(), Catch::Contains("lacks 'transformer.wte.weight'"));
  state.front().value = to_buffer(at::zeros({2, 2}));
  const auto misshapen = other.stage(0).restore(state);
  REQUIRE(!misshapen.ok());
  CHECK_THAT(misshapen.message(), Catch::Contains("[2, 2]") && Catch::Contains("[64, 32]"));
}

}  // namespace rrfp::compute::test
