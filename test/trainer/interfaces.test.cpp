/// User-defined weather, transports, optimizers, devices and chunks.
#include <atomic>

#include <rrfp/core/policy.hpp>
#include <rrfp/transport/transport.hpp>

#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;

namespace {

std::vector<double> losses_of(const pipeline_options& options, std::uint64_t steps = 3) {
  auto p = pipeline::open(job_of(), options).value();
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < steps; ++step)
    losses.push_back(p->step(batch_of(step)).value().loss);
  CHECK(p->finish().ok());
  return losses;
}

}  // namespace

TEST_CASE("user-defined weather delays tasks and messages and changes no bit") {
  const auto calm = losses_of(small_options());
  auto options = small_options();
  std::atomic<int> asked = 0;
  options.weather = actors::injected_delays{};
  options.weather->compute = [&](step_id, const rank_address& at, const task&) {
    ++asked;
    return at.stage == stage_id{1} ? 2.0 : 0.0;
  };
  options.weather->link = [](step_id, virtual_stage_id, const rank_address&, const task& t) {
    return t.mb.value() * 0.5;
  };
  CHECK(losses_of(options) == calm);
  CHECK(asked > 0);
}

TEST_CASE("a user-defined transport carries every tensor") {
  /// Counts messages and forwards them.
  class counting final : public actors::transport {
   public:
    counting(std::unique_ptr<actors::transport> inner, std::atomic<int>& count)
        : inner_(std::move(inner)), count_(count) {}
    void bind(rank_address address, actors::message_sink sink) override {
      inner_->bind(address, std::move(sink));
    }
    void send(actors::message m) override {
      ++count_;
      inner_->send(std::move(m));
    }
    bool takes_device_memory(const rank_address& to) const override {
      return inner_->takes_device_memory(to);
    }
    void close() override { inner_->close(); }

   private:
    const std::unique_ptr<actors::transport> inner_;
    std::atomic<int>& count_;
  };
  std::atomic<int> count = 0;
  auto options = small_options();
  options.wrap_transport = [&](std::unique_ptr<actors::transport> inner) {
    return std::make_unique<counting>(std::move(inner), count);
  };
  CHECK(losses_of(options) == losses_of(small_options()));
  CHECK(count == 3 * 5 * 2);  // steps, microbatches, activations and gradients
}

TEST_CASE("a user-defined optimizer updates the parameters of its stage") {
  class descent final : public compute::optimizer {
   public:
    explicit descent(std::vector<compute::parameter> parameters)
        : parameters_(std::move(parameters)) {}
    void step(double lr) override {
      const at::NoGradGuard no_grad;
      for (auto& p : parameters_) p.value.add_(p.value.grad(), -lr);
    }
    std::vector<compute::optimizer_tensor> state() const override { return {}; }
    status set_state(const std::vector<compute::optimizer_tensor>&) override { return success(); }

   private:
    std::vector<compute::parameter> parameters_;
  };
  auto options = small_options();
  std::atomic<int> made = 0;
  options.make_optimizer = [&](const std::vector<compute::parameter>& parameters) {
    ++made;
    REQUIRE(parameters.size() == 2);
    CHECK((parameters[0].name == "layers.0" || parameters[0].name == "layers.2"));
    return std::make_unique<descent>(parameters);
  };
  const auto own = losses_of(options);
  CHECK(made == 2);
  const auto with_momentum = losses_of(small_options());
  CHECK(own[1] == with_momentum[1]);  // without momentum so far, its first step is the same
  CHECK(own[2] != with_momentum[2]);
}

TEST_CASE(
    "a state of a user's optimizer that belongs to no parameter is refused, and names its "
    "function") {
  class stateful final : public compute::optimizer {
   public:
    explicit stateful(bool throws) : throws_(throws) {}
    void step(double) override {}
    std::vector<compute::optimizer_tensor> state() const override {
      if (throws_) throw std::runtime_error("no state");
      return {{99, "moment", at::zeros({1})}};
    }
    status set_state(const std::vector<compute::optimizer_tensor>&) override { return success(); }

   private:
    bool throws_;
  };
  for (const bool throws : {false, true}) {
    auto options = small_options();
    options.make_optimizer = [&](auto) { return std::make_unique<stateful>(throws); };
    auto p = pipeline::open(job_of(), options).value();
    CHECK(p->step(batch_of(0)).ok());
    CHECK_THAT(p->state_dict().message(),
               Contains(throws ? "optimizer::state() threw: no state"
                               : "optimizer::state(): expected tensors of parameters below 2, got "
                                 "one of parameter 99"));
  }
}

TEST_CASE("the learning rate of a user's schedule") {
  auto options = small_options();
  options.lr = [](std::uint64_t step) { return 0.01 * static_cast<double>(step); };
  {
    auto p = pipeline::open(job_of(), options).value();
    for (std::uint64_t step = 0; step < 3; ++step)
      CHECK(p->step(batch_of(step)).value().lr == 0.01 * static_cast<double>(step + 1));
  }
  options.lr = [](std::uint64_t) { return std::nan(""); };
  CHECK(pipeline::open(job_of(), options).value()->step(batch_of(0)).message() ==
        "step 1: lr: expected a number, got nan");
  options.lr = [](std::uint64_t) -> double { throw std::runtime_error("no rate"); };
  CHECK_THAT(pipeline::open(job_of(), options).value()->step(batch_of(0)).message(),
             Contains("lr threw: no rate"));
}

TEST_CASE("the state of a pipeline is read and set, the optimizer's included") {
  auto j = job_of();
  j.pipeline.stages = 4;
  const auto plain = train_plainly(5, 4);
  auto p = pipeline::open(j, small_options()).value();
  CHECK(p->state_dict().value().size() == layers);  // no step, so no momentum
  for (std::uint64_t step = 0; step < 2; ++step) CHECK(p->step(batch_of(step)).ok());
  const auto state = p->state_dict().value();
  CHECK(state.size() == 2 * layers);
  CHECK(p->step(batch_of(7)).ok());
  // Copies: the step has not changed them.
  CHECK(p->load_state_dict(state).ok());
  for (std::uint64_t step = 2; step < 4; ++step)
    CHECK(p->step(batch_of(step)).value().loss == plain.losses[step]);
  p->finish().value();
  CHECK(p->state_dict().message() == "the training is over");
  // With another number of stages.
  j.pipeline.stages = 2;
  p = pipeline::open(j, small_options()).value();
  CHECK(p->load_state_dict(state).ok());
  CHECK(p->steps() == 0);
  CHECK(p->step(batch_of(2)).value().loss == plain.losses[2]);
  auto less = state;
  std::erase_if(less, [](const auto& t) { return t.name == "layers.3"; });
  CHECK(p->load_state_dict(less).message() == "stage 1: the checkpoint lacks 'layers.3'");
  // What is refused changes nothing, the optimizer's state included.
  for (const auto& [value, why] :
       {std::pair{at::zeros({2}),
                  "stage 1: the optimizer's state: expected 'momentum' of the shape "},
        std::pair{at::Tensor{}, "'optimizer.layers.3.momentum': expected a dense tensor, got none"},
        std::pair{at::zeros({2, 2}).to_sparse(),
                  "'optimizer.layers.3.momentum': expected a dense tensor, got another layout"}}) {
    auto other = state;
    for (auto& t : other)
      if (t.name == "optimizer.layers.3.momentum") t.value = value;
    CHECK_THAT(p->load_state_dict(other).message(), Contains(why));
  }
  CHECK(p->step(batch_of(3)).value().loss == plain.losses[3]);
}

TEST_CASE("a user-defined device computes instead of libtorch's threads") {
  /// Adds 1 in the forward pass and returns 1 as the gradient.
  class adding final : public compute::rank_compute {
   public:
    explicit adding(bool is_first, bool is_last) : is_first_(is_first), is_last_(is_last) {}
    void begin_step(step_id, compute::step_purpose, const microbatch_shares&) override {
      losses_.clear();
    }
    tensor_buffer run(const launch& l, tensor_buffer input) override {
      if (l.what.kind == task_kind::weight) return {};
      if (l.what.kind != task_kind::forward) return is_first_ ? tensor_buffer{} : number(1);
      if (is_first_) return number(1);
      const auto sum = *static_cast<const double*>(input.data) + 1;
      if (!is_last_) return number(sum);
      losses_.push_back({l.what.mb, sum, 1});
      return {};
    }
    std::vector<compute::microbatch_loss> losses() const override { return losses_; }
    void sum_gradients(compute::rank_group&) override {}
    std::optional<tensor_buffer> tied_gradient() const override { return std::nullopt; }
    compute::tie tied_side() const override { return compute::tie::none; }
    void join_tied(const tensor_buffer&) override {}
    std::vector<compute::parameter_norm> squared_norms() override { return {}; }
    void apply(double, double) override {}
    void end_without_update() override {}
    std::vector<compute::parameter_hash> hashes() const override { return {}; }
    std::int64_t held_bytes() const override { return 0; }
    std::int64_t peak_bytes() const override { return 0; }

   private:
    static tensor_buffer number(double value) {
      auto b = make_host_buffer(dtype::float64, {1});
      *static_cast<double*>(b.data) = value;
      return b;
    }

    const bool is_first_, is_last_;
    std::vector<compute::microbatch_loss> losses_;
  };
  pipeline_options options;
  options.make_compute = [](rank_address a) -> result<std::shared_ptr<compute::rank_compute>> {
    return std::shared_ptr<compute::rank_compute>{
        std::make_shared<adding>(a.stage == stage_id{0}, a.stage == stage_id{1})};
  };
  CHECK(losses_of(options) == std::vector<double>{2, 2, 2});
  auto p = pipeline::open(job_of(), options).value();
  CHECK(p->step(batch_of(0), {.return_outputs = true}).message() ==
        "return_outputs: expected make_stage or make_chunk, got make_compute");
  CHECK(p->step(batch_of(0)).ok());
}

TEST_CASE("a user-defined chunk gets the microbatch and the purpose of the step") {
  class knowing final : public compute::stage_module {
   public:
    explicit knowing(const stage_place& at) : at_(at) {
      parameters_.push_back({"bias." + std::to_string(at.index), at::zeros({1}).requires_grad_()});
    }
    std::span<const compute::parameter> parameters() const override { return parameters_; }
    at::Tensor forward(const compute::forward_input& in) override {
      const auto x = in.input + parameters_[0].value;
      if (!at_.is_last()) return x;
      return x.sum() * 0 + static_cast<double>(in.mb.value()) + (in.training ? 100.0 : 0.0);
    }

   private:
    const stage_place at_;
    std::vector<compute::parameter> parameters_;
  };
  pipeline_options options;
  options.make_chunk = [](const stage_place& at) -> result<std::unique_ptr<compute::stage_module>> {
    return std::unique_ptr<compute::stage_module>{std::make_unique<knowing>(at)};
  };
  options.count = [](const at::Tensor&) { return std::int64_t{1}; };
  auto p = pipeline::open(job_of(), options).value();
  CHECK(p->step(batch_of(0)).value().losses == std::vector<double>{100, 101, 102, 103, 104});
  CHECK(p->eval(batch_of(0)).value().losses == std::vector<double>{0, 1, 2, 3, 4});
}

TEST_CASE("the outputs of a user-defined chunk are those that it passes to keep_output") {
  class doubling final : public compute::stage_module {
   public:
    doubling(const stage_place& at, bool keeps) : at_(at), keeps_(keeps) {
      parameters_.push_back({"scale." + std::to_string(at.index), at::ones({1}).requires_grad_()});
    }
    std::span<const compute::parameter> parameters() const override { return parameters_; }
    at::Tensor forward(const compute::forward_input& in) override {
      const auto x = in.input * 2 * parameters_[0].value;
      if (!at_.is_last()) return x;
      if (keeps_ && in.keep_output) in.keep_output(x);
      return x.sum();
    }

   private:
    const stage_place at_;
    const bool keeps_;
    std::vector<compute::parameter> parameters_;
  };
  for (const bool keeps : {true, false}) {
    pipeline_options options;
    options.make_chunk = [=](const stage_place& at) {
      return result<std::unique_ptr<compute::stage_module>>{std::make_unique<doubling>(at, keeps)};
    };
    auto p = pipeline::open(job_of(), options).value();
    const auto r = p->step(batch_of(0), {.return_outputs = true});
    if (!keeps) {
      CHECK_THAT(r.message(), Contains("stage 1, F0 of step 1: return_outputs: expected forward to "
                                       "call forward_input::keep_output, got no output"));
      continue;
    }
    const auto& outputs = r.value().outputs;
    REQUIRE(outputs.size() == 5);
    CHECK_FALSE(outputs[0].requires_grad());
    const auto inputs = at::tensor_split(batch_of(0).inputs, 5);
    for (std::size_t i = 0; i < 5; ++i) CHECK(at::equal(outputs[i], inputs[i] * 2 * 2));
    CHECK(p->step(batch_of(0)).value().outputs.empty());
    CHECK(p->eval(batch_of(0), {.return_outputs = true}).value().outputs.size() == 5);
  }
}

TEST_CASE("a pipeline gives the metrics of its run") {
  auto p = pipeline::open(job_of(), small_options()).value();
  CHECK(p->step(batch_of(0)).ok());
  const auto loss = p->step(batch_of(1)).value().loss;
  const auto text = p->metrics();
  CHECK_THAT(text, Contains("# TYPE rrfp_steps_total counter\nrrfp_steps_total{node=\"0\",run=") &&
                       Contains("# TYPE rrfp_healthy gauge\n") &&
                       Contains("replica=\"0\",stage=\"0\",kind=\"F\",le=\"+Inf\"} "));
  const auto value_of = [&](const std::string& name) {
    const auto line = text.find("\n" + name + "{");
    REQUIRE(line != text.npos);
    return std::stod(text.substr(text.find("} ", line) + 2));
  };
  CHECK(value_of("rrfp_steps_total") == 2);
  CHECK(value_of("rrfp_loss") == loss);
  CHECK(p->finish().ok());
  CHECK_THAT(p->metrics(), Contains("rrfp_steps_total{"));
}

TEST_CASE("a pipeline on emulated devices runs steps without a model") {
  auto j = job_of();
  j.device.kind = job::device_kind::emulated;
  j.cost.forward_ms = {1};
  pipeline_options options;
  std::atomic<int> made = 0;
  options.make_policy = [&](const pipeline_shape&, stage_id stage) {
    ++made;
    return policies::registry().make("bf", job::effective_shape(j)).value()->make(stage);
  };
  auto p = pipeline::open(j, options).value();
  CHECK(made >= static_cast<int>(j.pipeline.stages));
  for (std::uint64_t step = 1; step <= 2; ++step) {
    const auto done = p->step(batch{}).value();
    CHECK(done.step == step);
    CHECK(done.ms > j.pipeline.microbatches * 1.0);
  }
  CHECK(p->step(batch{}, {.return_outputs = true}).message() ==
        "return_outputs: expected a model, got device.kind = \"emulated\"");
  CHECK(p->eval(batch{}).ok());
  CHECK(p->finish().ok());

  options = small_options();
  const auto refused = pipeline::open(j, options);
  CHECK_THAT(refused.message(), Contains("device.kind") &&
                                    Contains("\"emulated\" computes nothing: expected no model and "
                                             "no loss in pipeline_options"));
  // The header of the pipeline has the exit codes, too.
  CHECK(exit_code_of(refused.failure().kind) == exit_bad_input);
}

}  // namespace rrfp::testing
