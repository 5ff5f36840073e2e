/// Models of several kinds, made of torch::nn modules and cut into one to four stages, in one
/// process and in several, equal a plain loop to the last bit.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include <ATen/autocast_mode.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <rrfp/accelerator/load.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/keyed_generator.hpp>

#include "http.hpp"
#include "program.hpp"
#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing::models {
namespace {

namespace nn = torch::nn;
using tensors = std::vector<at::Tensor>;

constexpr std::uint32_t layer_count = 4, microbatches = 4;
constexpr std::uint64_t steps = 3, seed = 3;

/// A layer of a model. What it returns, the next one takes.
class layer : public nn::Module {
 public:
  virtual tensors forward(tensors x) = 0;
};

class lstm_layer final : public layer {
 public:
  explicit lstm_layer(std::uint32_t index) {
    if (index == 0) embedding_ = register_module("embedding", nn::Embedding(30, 16));
    lstm_ = register_module("lstm", nn::LSTM(nn::LSTMOptions(16, 16).batch_first(true)));
    if (index + 1 == layer_count) head_ = register_module("head", nn::Linear(16, 30));
  }
  tensors forward(tensors x) override {
    auto h = embedding_.is_empty() ? x[0] : embedding_(x[0]);
    h = std::get<0>(lstm_(h));
    return {head_.is_empty() ? h : head_(h)};
  }

 private:
  nn::Embedding embedding_{nullptr};
  nn::LSTM lstm_{nullptr};
  nn::Linear head_{nullptr};
};

/// A level of the way down, or of the way up, which takes the output of its partner down there.
class unet_level final : public layer {
 public:
  explicit unet_level(std::uint32_t index) : is_down_(index < layer_count / 2) {
    convolution_ =
        register_module("convolution", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)));
    if (index == 0) enter_ = register_module("enter", nn::Conv2d(1, 4, 1));
    if (index + 1 == layer_count) leave_ = register_module("leave", nn::Conv2d(4, 1, 1));
  }
  tensors forward(tensors x) override {
    auto h = x.front();
    tensors skips(x.begin() + 1, x.end());
    if (!enter_.is_empty()) h = enter_(h);
    if (is_down_) {
      skips.push_back(h);
      h = at::avg_pool2d(at::relu(convolution_(h)), {2, 2});
    } else {
      h = at::repeat_interleave(at::repeat_interleave(convolution_(h), 2, 2), 2, 3) + skips.back();
      skips.pop_back();
    }
    if (!leave_.is_empty()) return {leave_(h)};
    skips.insert(skips.begin(), h);
    return skips;
  }

 private:
  const bool is_down_;
  nn::Conv2d convolution_{nullptr}, enter_{nullptr}, leave_{nullptr};
};

class normed_layer final : public layer {
 public:
  explicit normed_layer(std::uint32_t) {
    convolution_ =
        register_module("convolution", nn::Conv2d(nn::Conv2dOptions(1, 1, 3).padding(1)));
    norm_ = register_module("norm", nn::BatchNorm2d(1));
  }
  tensors forward(tensors x) override { return {at::relu(norm_(convolution_(x[0])))}; }

 private:
  nn::Conv2d convolution_{nullptr};
  nn::BatchNorm2d norm_{nullptr};
};

/// The first half encodes the source; the second half decodes the other input, which travels along.
class translation_layer final : public layer {
 public:
  explicit translation_layer(std::uint32_t index) {
    if (index == 0) embedding_ = register_module("embedding", nn::Embedding(30, 16));
    if (index < layer_count / 2)
      encoder_ = register_module(
          "encoder", nn::TransformerEncoderLayer(
                         nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)));
    else
      decoder_ = register_module(
          "decoder", nn::TransformerDecoderLayer(
                         nn::TransformerDecoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)));
    if (index + 1 == layer_count) head_ = register_module("head", nn::Linear(16, 30));
  }
  tensors forward(tensors x) override {
    auto source = x.at(0), target = x.at(1);
    if (!embedding_.is_empty()) {
      source = embedding_(source).transpose(0, 1);
      target = embedding_(target).transpose(0, 1);
    }
    if (!encoder_.is_empty()) source = encoder_(source);
    if (!decoder_.is_empty()) target = decoder_(target, source);
    if (!head_.is_empty()) return {head_(target).transpose(0, 1)};
    return {source, target};
  }

 private:
  nn::Embedding embedding_{nullptr};
  nn::TransformerEncoderLayer encoder_{nullptr};
  nn::TransformerDecoderLayer decoder_{nullptr};
  nn::Linear head_{nullptr};
};

/// A frozen linear layer with a trained correction of low rank.
class lora_layer final : public layer {
 public:
  explicit lora_layer(std::uint32_t) {
    frozen_ = register_module("frozen", nn::Linear(16, 16));
    for (auto& p : frozen_->parameters()) p.requires_grad_(false);
    a_ = register_parameter("a", at::randn({2, 16}) * 0.1);
    b_ = register_parameter("b", at::zeros({16, 2}));
  }
  tensors forward(tensors x) override {
    return {at::tanh(frozen_(x[0]) + at::linear(x[0], b_.mm(a_)))};
  }

 private:
  nn::Linear frozen_{nullptr};
  at::Tensor a_, b_;
};

class linear_layer final : public layer {
 public:
  explicit linear_layer(std::uint32_t) { linear_ = register_module("linear", nn::Linear(16, 16)); }
  tensors forward(tensors x) override { return {x[0] + at::tanh(linear_(x[0]))}; }

 private:
  nn::Linear linear_{nullptr};
};

/// Dropout between layers; the last one has a copy of the first one's embedding as its head.
class tied_layer final : public layer {
 public:
  explicit tied_layer(std::uint32_t index) {
    if (index == 0) embedding_ = register_module("embedding", nn::Embedding(30, 16));
    layers_ = register_module("layers", nn::Sequential(nn::Linear(16, 16), nn::Dropout(0.2)));
    if (index + 1 < layer_count) return;
    at::manual_seed(100);  // as the first layer
    head_ = register_parameter("head", nn::Embedding(30, 16)->weight.detach().clone());
  }
  tensors forward(tensors x) override {
    auto h = embedding_.is_empty() ? x[0] : embedding_(x[0]);
    h = h + at::gelu(layers_->forward(h));
    return {head_.defined() ? at::linear(h, head_) : h};
  }

 private:
  nn::Embedding embedding_{nullptr};
  nn::Sequential layers_{nullptr};
  at::Tensor head_;
};

constexpr const char *tied_owner = "layer0.embedding.weight", *tied_copy = "layer3.head";

struct microbatch_of {
  tensors inputs;
  at::Tensor target;
  std::int64_t count = 0;
};

struct kind {
  std::function<std::shared_ptr<layer>(std::uint32_t index)> make;
  std::function<microbatch_of(std::int64_t rows)> draw;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
  bool is_tied = false;
  bool is_scaled = false;  ///< autocast to float16, with a scale and an overflow in step 2
};

template <class Layer>
std::shared_ptr<layer> make_layer(std::uint32_t index) {
  at::manual_seed(100 + index);
  return std::make_shared<Layer>(index);
}

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten(), {}, at::Reduction::Sum);
}
microbatch_of text_of_tokens(std::int64_t rows) {
  const auto x = at::randint(0, 30, {rows, 9}, at::kLong);
  return {{x}, x.roll(-1, 1), x.numel()};
}
microbatch_of two_texts(std::int64_t rows) {
  const auto source = at::randint(0, 30, {rows, 9}, at::kLong);
  const auto target = at::randint(0, 30, {rows, 5}, at::kLong);
  return {{source, target}, target.roll(-1, 1), target.numel()};
}
microbatch_of pictures(std::int64_t rows) {
  const auto x = at::rand({rows, 1, 8, 8});
  return {{x}, x * 2, rows};
}
microbatch_of vectors(std::int64_t rows) {
  return {{at::randn({rows, 16})}, at::randn({rows, 16}), rows};
}

const std::map<std::string, kind>& kinds() {
  static const std::map<std::string, kind> all{
      {"character LSTM", {make_layer<lstm_layer>, text_of_tokens, token_loss}},
      {"U-Net with skips", {make_layer<unet_level>, pictures, square_loss}},
      {"batch norm", {make_layer<normed_layer>, pictures, square_loss}},
      {"encoder and decoder with two inputs",
       {make_layer<translation_layer>, two_texts, token_loss}},
      {"LoRA", {make_layer<lora_layer>, vectors, square_loss}},
      {"dropout and tied weights", {make_layer<tied_layer>, text_of_tokens, token_loss, true}},
      {"float16 with an overflow", {make_layer<linear_layer>, vectors, square_loss, false, true}},
  };
  return all;
}

std::vector<microbatch_of> batch_at(const kind& k, std::uint64_t step) {
  at::manual_seed(step);
  std::vector<microbatch_of> all;
  for (std::int64_t i = 0; i < microbatches; ++i) all.push_back(k.draw(2 + i % 2));
  if (k.is_scaled && step == 1) all[2].inputs[0] *= 1e6;  // beyond float16
  return all;
}

/// Some of the layers.
class part_of_layers final : public nn::Module {
 public:
  part_of_layers(const kind& k, const stage_place& at) {
    for (auto i = layer_count * at.index / at.count; i < layer_count * (at.index + 1) / at.count;
         ++i)
      layers_.push_back(register_module("layer" + std::to_string(i), k.make(i)));
  }
  tensors forward(tensors x) {
    for (const auto& l : layers_) x = l->forward(std::move(x));
    return x;
  }

 private:
  std::vector<std::shared_ptr<layer>> layers_;
};

class autocast_to_half {
 public:
  autocast_to_half(bool on, at::Device device) : on_(on), device_(device.type()) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kHalf);
    at::autocast::increment_nesting();
  }
  autocast_to_half(const autocast_to_half&) = delete;
  autocast_to_half& operator=(const autocast_to_half&) = delete;
  ~autocast_to_half() {
    if (!on_) return;
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }

 private:
  const bool on_;
  const at::DeviceType device_;
};

struct trained {
  std::vector<std::vector<double>> losses;  ///< by step and microbatch
  std::map<std::string, at::Tensor> state;  ///< parameters and buffers
};

void add_state(trained& r, const nn::Module& part) {
  for (const auto& p : part.named_parameters()) r.state[p.key()] = p.value().detach();
  for (const auto& b : part.named_buffers())
    if (b.value().defined()) r.state[b.key()] = b.value();
}

/// The same training of the parts in a loop. Random numbers depend on the number of parts.
trained train_in_a_loop(const kind& k, std::uint32_t parts, at::Device device = at::kCPU) {
  at::set_num_threads(1);
  std::vector<std::shared_ptr<part_of_layers>> model;
  std::vector<at::Tensor> weights;
  trained r;
  for (std::uint32_t i = 0; i < parts; ++i) {
    model.push_back(std::make_shared<part_of_layers>(k, stage_place{i, 0, i, parts, nullptr}));
    model[i]->to(device);
    add_state(r, *model[i]);
    for (const auto& p : model[i]->parameters()) weights.push_back(p);
  }
  torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  double scale = k.is_scaled ? 1024 : 1;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto batch = batch_at(k, step);
    std::int64_t total = 0;
    for (const auto& mb : batch) total += mb.count;
    auto& losses = r.losses.emplace_back();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      at::Tensor loss;
      {
        const autocast_to_half casting{k.is_scaled, device};
        auto x = batch[i].inputs;
        for (auto& input : x) input = input.to(device);
        for (std::uint32_t part = 0; part < parts; ++part) {
          const keyed_generator drawing{draw_key{seed, step + 1, i, part}, device};
          x = model[part]->forward(std::move(x));
        }
        loss = k.loss(x[0], batch[i].target.to(device));
      }
      losses.push_back(loss.item<double>() / static_cast<double>(batch[i].count));
      (loss / static_cast<double>(total) * scale).backward();
    }
    const at::NoGradGuard no_grad;
    if (k.is_tied) {
      std::map<std::string, at::Tensor> leaves;
      for (const auto& part : model)
        for (const auto& p : part->named_parameters()) leaves[p.key()] = p.value();
      const auto sum = leaves.at(tied_owner).grad() + leaves.at(tied_copy).grad();
      leaves.at(tied_owner).mutable_grad() = sum.clone();
      leaves.at(tied_copy).mutable_grad() = sum;
    }
    bool is_finite = true;
    for (const auto& w : weights) {
      if (!w.grad().defined()) continue;
      if (k.is_scaled) w.mutable_grad().mul_(static_cast<float>(1 / scale));
      is_finite = is_finite && at::isfinite(w.grad()).all().item<bool>();
    }
    if (is_finite)
      optimizer.step();
    else
      scale /= 2;
    optimizer.zero_grad();
  }
  return r;
}

/// A part with its side of the tied weights, which only a module of the runtime's interface has.
class tied_chunk final : public compute::stage_module {
 public:
  tied_chunk(const kind& k, const stage_place& at, std::shared_ptr<part_of_layers> part)
      : kind_(k), part_(std::move(part)), index_(at.index), is_last_(at.is_last()) {
    for (const auto& p : part_->named_parameters()) {
      auto& mine = parameters_.emplace_back(compute::parameter{p.key(), p.value()});
      if (p.key() == tied_owner) mine.tied = compute::tie::owner;
      if (p.key() != tied_copy) continue;
      mine.tied = compute::tie::copy;
      mine.name = tied_owner;
    }
  }
  std::span<const compute::parameter> parameters() const override { return parameters_; }
  at::Tensor forward(const compute::forward_input& in) override {
    part_->train(in.training);
    const draw_key key{seed, number_of(in.step), in.mb.value(), index_};
    return draws_.run(key, in.input.device(), in.training, [&] {
      const auto out = part_->forward({in.input}).at(0);
      return is_last_ ? kind_.loss(out, in.targets) : out;
    });
  }

 private:
  const kind& kind_;
  const std::shared_ptr<part_of_layers> part_;
  const std::uint64_t index_;
  const bool is_last_;
  keyed_draws draws_;
  std::vector<compute::parameter> parameters_;
};

std::vector<compute::microbatch> fed(const std::vector<microbatch_of>& batch) {
  std::vector<compute::microbatch> all;
  for (const auto& mb : batch) {
    auto& one = all.emplace_back();
    one.inputs = mb.inputs.size() == 1 ? mb.inputs[0] : pack(mb.inputs);
    one.targets = mb.target;
    one.tokens = mb.count;
  }
  return all;
}

/// The state of the parts in this process.
trained train_in_a_pipeline(const kind& k, job::job j) {
  j.train.seed = seed;
  j.train.optimizer = job::optimizer_kind::adamw;
  j.train.weight_decay = 0.1;
  j.train.beta2 = 0.999;
  j.train.epsilon = 1e-8;
  j.train.loss_scale = k.is_scaled ? 1024 : 0;
  std::vector<std::shared_ptr<part_of_layers>> parts;
  auto options = small_options();
  options.loss = k.loss;
  if (k.is_scaled) options.autocast = at::kHalf;
  const auto make = [&](const stage_place& at) {
    return parts.emplace_back(std::make_shared<part_of_layers>(k, at));
  };
  if (k.is_tied)
    options.make_chunk =
        [&](const stage_place& at) -> result<std::unique_ptr<compute::stage_module>> {
      return std::unique_ptr<compute::stage_module>{std::make_unique<tied_chunk>(k, at, make(at))};
    };
  else
    options.make_stage = [&](const stage_place& at) { return stage_of(make(at)); };
  auto opened = pipeline::open(j, options);
  INFO((opened ? "" : opened.message()));
  REQUIRE(opened.ok());
  auto& p = *opened;
  trained r;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto done = p->step(fed(batch_at(k, step)));
    INFO((done ? "" : done.message()));
    REQUIRE(done.ok());
    r.losses.push_back(done->losses);
    CHECK(done->is_skipped == (k.is_scaled && step == 1));
  }
  REQUIRE(p->finish().ok());
  for (const auto& part : parts) add_state(r, *part);
  return r;
}

bool same(double a, double b) { return a == b || (!std::isfinite(a) && !std::isfinite(b)); }

/// `is_whole`: all parts of the model are in this process.
void check_equal(const trained& r, const trained& plain, bool is_whole) {
  REQUIRE(r.losses.size() == plain.losses.size());
  for (std::size_t step = 0; step < r.losses.size(); ++step)
    CHECK(std::equal(r.losses[step].begin(), r.losses[step].end(), plain.losses[step].begin(),
                     plain.losses[step].end(), same));
  CHECK(!r.state.empty());
  if (is_whole) CHECK(r.state.size() == plain.state.size());
  for (const auto& [name, value] : r.state) {
    INFO(name);
    CHECK(at::equal(value.cpu(), plain.state.at(name).cpu()));
  }
}

job::job with_policy(const std::string& policy, std::uint32_t stages) {
  auto j = job_of("[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n");
  j.dispatch.policy = policy;
  j.pipeline.stages = stages;
  j.pipeline.microbatches = microbatches;
  return j;
}

/// `is_whole`: all parts of the model are in this process.
void train_with_every_policy(const std::string& name, const kind& k, std::uint32_t stages,
                             bool is_whole = true, job::device_kind device = job::device_kind::cpu,
                             at::Device loop_device = at::kCPU) {
  const auto plain = train_in_a_loop(k, stages, loop_device);
  int policies_run = 0;
  for (const auto& policy : policies::registry().known()) {
    INFO(name << ", " << stages << " stages, " << policy.name);
    auto j = with_policy(std::string{policy.name}, stages);
    j.device.kind = device;
    if (!job::check_job(j, policies::registry(), job::job_use::embed)) continue;
    check_equal(train_in_a_pipeline(k, j), plain, is_whole);
    ++policies_run;
  }
  CHECK(policies_run > 5);
}

}  // namespace

TEST_CASE("models of several kinds equal a plain loop with every policy") {
  for (const auto& [name, k] : kinds())
    for (const std::uint32_t stages : {1, 2, 4}) train_with_every_policy(name, k, stages);
}

// As one node of several, started by the next test.
TEST_CASE("one node of several", "[.][node]") {
  REQUIRE(std::getenv("NNODES") != nullptr);
  for (const auto& [name, k] : kinds()) train_with_every_policy(name, k, 4, false);
}

TEST_CASE("the state after each step, on nodes of which one has begun the next step", "[.][node]") {
  auto j = job_of();
  j.pipeline.stages = layers;
  auto p = pipeline::open(j, small_options()).value();
  for (std::uint64_t step = 0; step < 4; ++step) {
    REQUIRE(p->step(batch_of(step)).ok());
    if (std::getenv("NODE_RANK") == std::string{"1"})
      std::this_thread::sleep_for(std::chrono::milliseconds{100});
    const auto state = p->state_dict();
    INFO((state ? std::string{} : state.message()));
    REQUIRE(state.ok());
    REQUIRE(p->load_state_dict(*state).ok());
  }
  // The leading node must not finish while another one asks.
  CHECK(p->step(batch_of(4)).ok());
  CHECK(p->finish().ok());
}

TEST_CASE("models of several kinds equal a plain loop in several processes") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (const int nodes : {2, 4}) {
    const auto port = std::to_string(rrfp::test::free_ports(1));
    std::vector<std::unique_ptr<rrfp::test::program>> all;
    for (int node = 0; node < nodes; ++node)
      all.push_back(std::make_unique<rrfp::test::program>(std::vector<std::string>{
          "/usr/bin/env", "NNODES=" + std::to_string(nodes), "NODE_RANK=" + std::to_string(node),
          "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, self, "[node]"}));
    for (const auto& one : all) {
      const auto r = one->wait(std::chrono::seconds{300});
      INFO(r.out << r.err);
      CHECK(r.code == 0);
      CHECK(r.out.find("All tests passed") != std::string::npos);
    }
  }
}

TEST_CASE("models of several kinds train on a device", "[.][cuda]") {
  if (const auto cuda = accelerator::load_cuda(true); !cuda) {
    std::printf("skipped: %s\n", cuda.message().c_str());
    std::exit(77);
  }
  at::globalContext().setUserEnabledCuDNN(false);
  for (const auto& [name, k] : kinds())
    for (const std::uint32_t stages : {1, 2, 4})
      train_with_every_policy(name, k, stages, true, job::device_kind::cuda, at::kCUDA);
}

}  // namespace rrfp::testing::models
