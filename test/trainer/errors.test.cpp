/// An error in a user's model ends the training at once, without a hang, and names the stage.
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;

namespace {

std::string refused(pipeline_options options, const std::string& job = {}) {
  auto opened = pipeline::open(job_of(job), std::move(options));
  return opened ? "accepted" : opened.message();
}

/// The message of the first step with stage 1 replaced.
std::string fails_with(std::function<stage(const stage_place&)> second) {
  auto options = small_options();
  options.make_stage = [second](const stage_place& at) {
    return at.index == 1 ? second(at) : part_at(at);
  };
  auto p = pipeline::open(job_of(), options).value();
  const auto r = p->step(batch_of(0));
  REQUIRE_FALSE(r);
  CHECK(p->step(batch_of(1)).message() == r.message());
  CHECK(p->eval(batch_of(1)).message() == r.message());
  CHECK(p->finish().message() == r.message());
  return r.message();
}

stage with_forward(std::function<at::Tensor(const at::Tensor&)> forward) {
  auto s = layers_of(2, 4);
  s.forward = std::move(forward);
  return s;
}

}  // namespace

TEST_CASE("an invalid job made by the program is refused with the key") {
  const auto opened = [](auto change) {
    auto j = job_of();
    change(j);
    auto p = pipeline::open(std::move(j), small_options());
    return p ? "accepted" : p.message();
  };
  CHECK_THAT(opened([](job::job& j) { j.train.lr = -1; }),
             Contains("train.lr: expected a number >= 0, got -1.0"));
  CHECK_THAT(opened([](job::job& j) { j.source = "", j.dispatch.policy = "best"; }),
             Contains("the job: dispatch.policy: expected one of "));
}

TEST_CASE("a tensor under two names is refused, in one part and in two") {
  auto options = small_options();
  options.make_stage = [](const stage_place& at) {
    auto s = part_at(at);
    if (at.index == 1) s.parameters.emplace_back("again", s.parameters[0].second);
    return s;
  };
  CHECK_THAT(refused(options),
             Contains("the parameter 'again' is the tensor of 'layers.2' of part 1, too"));
  options.make_stage = [shared = weight_of(0)](const stage_place& at) {
    auto s = part_at(at);
    s.parameters[0].second = shared;
    return s;
  };
  CHECK_THAT(refused(options),
             Contains("part 1: the parameter 'layers.2' is the tensor of 'layers.0' of part 0"));
}

TEST_CASE("a sparse gradient is refused in words") {
  CHECK_THAT(
      fails_with([](const stage_place&) {
        stage s;
        s.parameters.emplace_back("words", at::rand({4, width}).requires_grad_());
        s.forward = [words = s.parameters[0].second](const at::Tensor& x) {
          const auto ids = at::arange(x.size(0), at::kLong).remainder(4);
          return x + at::embedding(words, ids, -1, false, /*sparse=*/true);
        };
        return s;
      }),
      Contains(
          "the gradient of a parameter of [4, 16] has the layout Sparse: expected a dense one"));
}

TEST_CASE(
    "a make_stage or make_chunk that returns nothing or throws is an error that names the stage") {
  auto options = small_options();
  options.make_stage = [](const stage_place& at) -> result<stage> {
    if (at.index == 1) return stage{};
    return part_at(at);
  };
  CHECK(refused(options) == "stage 1 chunk 0: make_stage returned no module");
  options.make_stage = [](const stage_place& at) -> result<stage> {
    if (at.index == 1) throw std::runtime_error("no such file");
    return part_at(at);
  };
  CHECK(refused(options) == "stage 1 chunk 0: make_stage threw: no such file");
  options.make_stage = [](const stage_place&) -> result<stage> { return error{"not today"}; };
  CHECK(refused(options) == "stage 0 chunk 0: not today");
  options.make_stage = [](const stage_place& at) -> result<stage> {
    auto s = part_at(at);
    s.parameters.emplace_back("double", at::zeros({2}, at::kDouble));
    return s;
  };
  CHECK_THAT(refused(options),
             Contains("stage 0 chunk 0: parameter 'double': expected a float leaf"));
  options.make_stage = [](const stage_place&) -> result<stage> { return layers_of(0, 1); };
  CHECK_THAT(refused(options, "[dispatch]\nslot_bytes = 1000\n"), Contains("slot_bytes"));
  CHECK_THAT(refused(pipeline_options{}), Contains("expected make_stage and loss"));
  options = small_options();
  options.make_stage = nullptr;
  options.make_chunk = [](const stage_place&) -> result<std::unique_ptr<compute::stage_module>> {
    return std::unique_ptr<compute::stage_module>{};
  };
  CHECK(refused(options) == "stage 0 chunk 0: make_chunk returned no module");
}

TEST_CASE("an error in a stage names the stage, the task and the input") {
  CHECK_THAT(
      fails_with([](auto&) {
        return with_forward(
            [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("out of luck"); });
      }),
      Contains("stage 1, F0 of step 1: forward: out of luck (given Float [8, 16] by stage 0)"));
  // Another width than the loss expects.
  CHECK_THAT(
      fails_with([](auto&) {
        return with_forward([](const at::Tensor& x) { return x.narrow(1, 0, 3); });
      }),
      Contains("stage 1, F0 of step 1: loss: ") && Contains("[8, 3]") && Contains("[8, 16]"));
  CHECK_THAT(fails_with([](auto&) {
               return with_forward([](const at::Tensor&) { return at::Tensor{}; });
             }),
             Contains("stage 1, F0 of step 1: forward returned no tensor"));
  auto options = small_options();
  // `change` is applied to the output of the first stage.
  const auto first_stage = [&](std::function<at::Tensor(const at::Tensor&)> change) {
    options.make_stage = [change](const stage_place& at) {
      auto s = part_at(at);
      if (at.index == 0)
        s.forward = [change, forward = s.forward](const at::Tensor& x) {
          return change(forward(x));
        };
      return s;
    };
    auto p = pipeline::open(job_of(), options).value();
    return p->step(batch_of(0)).message();
  };
  // Another width than the next stage expects: the error names the input.
  CHECK_THAT(
      first_stage([](const at::Tensor& x) { return x.narrow(1, 0, 3); }),
      Contains("stage 1, F0 of step 1: forward: ") && Contains("given Float [8, 3] by stage 0"));
  CHECK_THAT(
      first_stage([](const at::Tensor& x) { return x.to(at::kLong); }),
      Contains("stage 0, F0 of step 1: forward returned Long [8, 16], expected a float tensor"));
  CHECK_THAT(first_stage([](const at::Tensor& x) { return x.detach() * 2; }),
             Contains("stage 0, F0 of step 1: forward returned a tensor without a gradient"));
  CHECK_THAT(
      first_stage([](const at::Tensor&) -> at::Tensor { throw 3; }),
      Contains("stage 0, F0 of step 1: forward: threw an object that is not a std::exception"));
  options = small_options();
  options.loss = [](const at::Tensor& output, const at::Tensor&) { return output; };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("stage 1") && Contains("the loss is Float [8, 16], expected a float scalar"));
  options.loss = [](const at::Tensor& output, const at::Tensor&) { return output.sum().view({1}); };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("the loss is Float [1], expected a float scalar"));
  options.loss = [](const at::Tensor&, const at::Tensor&) { return at::Tensor{}; };
  CHECK_THAT(pipeline::open(job_of(), options).value()->eval(batch_of(0)).message(),
             Contains("stage 1, F0 of an evaluation: the loss is none"));
  options.loss = [](const at::Tensor& output, const at::Tensor&) { return output.detach().sum(); };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("stage 1, F0 of step 1: the loss has no gradient"));
  options.loss = [](const at::Tensor& output, const at::Tensor&) { return output.sum() / 0; };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("stage 1") && Contains("the loss of microbatch 0 is"));
}

TEST_CASE("a user function that throws or returns nothing is an error") {
  auto options = small_options();
  options.make_policy = [](const pipeline_shape&, stage_id) -> std::unique_ptr<policy> {
    throw std::runtime_error("no policy today");
  };
  CHECK(refused(options) == "make_policy threw: no policy today");
  options.make_policy = [](const pipeline_shape&, stage_id) { return std::unique_ptr<policy>{}; };
  CHECK(refused(options) == "stage 0: make_policy returned null");
  options = small_options();
  options.make_optimizer = [](auto) -> std::unique_ptr<compute::optimizer> { throw 3; };
  CHECK(refused(options) == "make_optimizer threw an object that is not a std::exception");
  options.make_optimizer = [](auto) { return std::unique_ptr<compute::optimizer>{}; };
  CHECK(refused(options) == "stage 0: make_optimizer gave no optimizer");
  options = small_options();
  options.autocast = at::kLong;
  CHECK(refused(options) == "pipeline_options::autocast: expected BFloat16 or Half, got Long");
  options = small_options();
  options.place = actors::launch_place{.nodes = 0};
  CHECK(refused(options) == "place: expected at least 1 node, got 0");
  CHECK_THAT(fails_with([](const stage_place& at) {
               auto s = part_at(at);
               s.set_training = [](bool) { throw 3; };
               return s;
             }),
             Contains("F0 of step 1: set_training threw an object that is not a std::exception"));
  pipeline_options bare;
  bare.make_compute = [](auto) { return std::shared_ptr<compute::rank_compute>{}; };
  CHECK(refused(bare) == "stage 0: make_compute returned null");
  options = small_options();
  options.wrap_transport = [](auto) { return std::unique_ptr<actors::transport>{}; };
  CHECK(pipeline::open(job_of(), options).value()->step(batch_of(0)).message() ==
        "wrap_transport returned null");
  options = small_options();
  options.count = [](const at::Tensor&) -> std::int64_t {
    throw std::runtime_error("uncountable");
  };
  auto p = pipeline::open(job_of(), options).value();
  CHECK(p->step(batch_of(0)).message() == "count threw: uncountable");
  CHECK(p->finish().ok());
  options = small_options();
  options.make_stage = [](const stage_place& at) {
    auto s = part_at(at);
    s.set_training = [](bool) { throw 3; };
    return s;
  };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("threw an object that is not a std::exception"));
}

TEST_CASE(
    "a policy that throws or breaks a rule during a step ends the training, not the program") {
  class weary final : public policy {
   public:
    explicit weary(bool throws) : throws_(throws) {}
    std::string_view name() const override { return "weary"; }
    task_kind backward_of(microbatch_id, chunk_id) const override { return task_kind::backward; }
    std::uint32_t lanes() const override { return 1; }
    std::uint32_t lane_of(const task&) const override { return 0; }
    std::uint64_t rank(const task& t) const override { return t.mb.value(); }
    lane_order order(const stage_view&) const override {
      return throws_ ? lane_order{} : lane_order{{1, 1}, 2};
    }
    void launched(const task& t) override {
      if (throws_ && t.mb == microbatch_id{2}) throw std::runtime_error("no more");
    }

   private:
    bool throws_;
  };
  for (const bool throws : {true, false}) {
    auto options = small_options();
    options.make_policy = [&](const pipeline_shape&, stage_id) {
      return std::make_unique<weary>(throws);
    };
    auto p = pipeline::open(job_of(), options).value();
    const auto message = p->step(batch_of(0)).message();
    CHECK_THAT(message, Contains("policy 'weary': ") &&
                            Contains(throws ? "launched() threw: no more"
                                            : "order(): expected different lanes from 0 to 3"));
    CHECK_FALSE(p->finish());
  }
}

TEST_CASE("delays that are no time, and those that throw, are named") {
  auto options = small_options();
  options.weather.emplace();
  options.weather->compute = [](step_id, const rank_address&, const task&) { return std::nan(""); };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("weather.compute threw: expected 1000000000 ms at most, got nan"));
  options.weather.emplace();
  options.weather->link = [](step_id, virtual_stage_id, const rank_address&,
                             const task&) -> double { throw std::runtime_error("no link"); };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("weather.link threw: no link"));
}

TEST_CASE("a forward that leaves gradients off trains as if it had not") {
  const auto trained = [](bool leaves_off) {
    auto options = small_options();
    options.make_stage = [=](const stage_place& at) {
      auto s = part_at(at);
      s.forward = [leaves_off, own = s.forward](const at::Tensor& in) {
        auto out = own(in);
        if (leaves_off) at::GradMode::set_enabled(false);
        return out;
      };
      return s;
    };
    auto p = pipeline::open(job_of(), options).value();
    REQUIRE(p->step(batch_of(0)).ok());
    return p->step(batch_of(1)).value().loss;
  };
  CHECK(trained(true) == trained(false));
}

TEST_CASE("two parts of the model must not have parameters of the same name") {
  auto options = small_options();
  options.make_stage = [](const stage_place&) { return layers_of(0, 2); };
  CHECK(refused(options) ==
        "stage 1 chunk 0: parameter 'layers.0' is in part 0 of the model and in part 1: names must "
        "differ, as with stage_of(module, prefix)");
}

TEST_CASE("an invalid batch is refused, and the pipeline continues") {
  auto p = pipeline::open(job_of(), small_options()).value();
  CHECK(p->step(batch_of(0, 4)).message() ==
        "batch.inputs: expected at least 5 rows, one per microbatch, got 4");
  CHECK(p->step({batch_of(0).inputs, at::zeros({})}).message() ==
        "batch.targets: expected at least 5 rows, one per microbatch, got 0");
  CHECK(p->step({batch_of(0).inputs, batch_of(0, 36).targets}).message() ==
        "batch: expected as many targets as inputs, got 36 and 37 rows");
  CHECK(p->step({batch_of(0).inputs, {}}).message() ==
        "microbatch 0: expected targets in the process of the last stage, got none");
  CHECK(p->step({{}, batch_of(0).targets}).message() ==
        "microbatch 0: expected inputs in the process of the first stage, got none");
  CHECK(p->eval(batch{}).message() ==
        "microbatch 0: expected inputs in the process of the first stage, got none");
  std::vector<compute::microbatch> all(5);
  for (auto& mb : all) mb.inputs = mb.targets = batch_of(0, 1).inputs;
  CHECK(p->step(all).message() ==
        "batch: expected targets that count, got a count of 0 in all microbatches");
  all[1].tokens = 2;
  all[3].tokens = -1;
  CHECK(p->step(all).message() == "microbatch 3: expected a count of 0 or more, got -1");
  all[3].tokens = std::numeric_limits<std::int64_t>::max();
  CHECK_THAT(p->step(all).message(), Contains("expected counts whose sum is below 2^63"));
  all[3].tokens = 0;
  all[4].targets = at::Tensor{};
  CHECK(p->step(all).message() ==
        "microbatch 4: expected targets in the process of the last stage, got none");
  CHECK(p->step(batch_of(0)).value().loss == train_plainly(5, 1).losses[0]);
  CHECK(p->finish().value().steps == 1);
}

namespace {

struct tensor_to_tensor {
  at::Tensor forward(at::Tensor x) { return x; }
};
struct tensor_to_pair {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {x, x}; }
};
struct two_to_tensor {
  at::Tensor forward(const at::Tensor& x, const at::Tensor&) { return x; }
};
static_assert(tensor_module<std::shared_ptr<tensor_to_tensor>>);
static_assert(!tensor_module<std::shared_ptr<tensor_to_pair>>);
static_assert(!tensor_module<std::shared_ptr<two_to_tensor>>);

}  // namespace

TEST_CASE("a call inside a forward is an error at once, and the step goes on") {
  auto inner = pipeline::open(job_of(), small_options()).value();
  const auto state = inner->state_dict().value();
  pipeline* outer = nullptr;
  const std::vector<std::function<std::string()>> calls{
      [&] { return outer->state_dict().message(); },
      [&] { return outer->load_state_dict(state).message(); },
      [&] { return outer->step(batch_of(0)).message(); },
      [&] { return outer->save().message(); },
      [&] { return outer->finish().message(); },
      [&] { return inner->step(batch_of(0)).message(); },
      [&] { return pipeline::open(job_of(), small_options()).message(); },
  };
  for (const auto& call : calls) {
    auto options = small_options();
    std::string message;
    options.make_stage = [&](const stage_place& at) {
      auto s = part_at(at);
      if (at.index == 1)
        s.forward = [&, forward = s.forward](const at::Tensor& x) {
          if (message.empty()) message = call();
          return forward(x);
        };
      return s;
    };
    auto p = pipeline::open(job_of(), options).value();
    outer = p.get();
    CHECK(p->step(batch_of(0)).ok());
    CHECK_THAT(message, Contains("the pipeline was called inside a forward"));
    CHECK(p->finish().ok());
  }
}

TEST_CASE("state_dict() from another thread during a step is an error") {
  auto options = small_options();
  pipeline* p = nullptr;
  std::string message;
  options.make_stage = [&](const stage_place& at) {
    auto s = part_at(at);
    if (at.index == 1)
      s.forward = [&, forward = s.forward](const at::Tensor& x) {
        if (message.empty()) std::thread{[&] { message = p->state_dict().message(); }}.join();
        return forward(x);
      };
    return s;
  };
  auto opened = pipeline::open(job_of(), options).value();
  p = opened.get();
  CHECK(p->step(batch_of(0)).ok());
  CHECK_THAT(message, Contains("the pipeline is in a step or another call"));
  CHECK(p->state_dict().ok());
}

TEST_CASE("an unused pipeline ends") {
  auto unused = pipeline::open(job_of(), small_options()).value();
  auto finished = pipeline::open(job_of(), small_options()).value();
  CHECK(finished->finish().value().steps == 0);
}

}  // namespace rrfp::testing
