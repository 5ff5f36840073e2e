#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <rrfp/compute/batch_source.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/compute/gpt.hpp>
#include <rrfp/compute/keyed_hash.hpp>
#include <rrfp/compute/parallel_operators.hpp>

namespace rrfp::compute {

namespace {

constexpr double initial_deviation = 0.02;
constexpr double norm_epsilon = 1e-5;

/// Places in a layer where dropout is applied.
enum class site : std::uint32_t { embedding, attention, feed_forward };

using shared_group = std::shared_ptr<rank_group>;

/// Along which dimension the ranks share a parameter, and in how many blocks (see shard).
struct cut {
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;
};
using maybe_cut = std::optional<cut>;

/// Makes parameters in model order; their values follow from (seed, name). Every rank makes all of
/// a parameter and keeps its part: the same model for any number of ranks.
class parameter_maker {
 public:
  parameter_maker(std::uint64_t seed, shared_group group) : seed_(seed), group_(std::move(group)) {}

  const shared_group& group() const { return group_; }

  at::Tensor normal(const std::string& name, at::IntArrayRef shape, double deviation,
                    maybe_cut how = {}, tie tied = tie::none) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(keyed_hash(
        {static_cast<std::uint64_t>(random_use::initial_weight), seed_, hash_of_name(name)}));
    return add(name, at::empty(shape).normal_(0, deviation, generator), how, tied);
  }
  at::Tensor zeros(const std::string& name, std::int64_t n, maybe_cut how = {}) {
    return add(name, at::zeros({n}), how);
  }
  at::Tensor ones(const std::string& name, std::int64_t n) { return add(name, at::ones({n}), {}); }

  std::vector<parameter> take() { return std::move(parameters_); }

 private:
  at::Tensor add(const std::string& name, at::Tensor value, maybe_cut how, tie tied = tie::none) {
    std::optional<shard> part;
    if (how && is_parallel(group_)) {
      part = even_shard(value.sizes().vec(), how->dimension, how->blocks, group_->rank(),
                        group_->size());
      value = slice_of(value, *part);
    }
    value.requires_grad_();
    parameters_.push_back({name, value, tied, std::move(part)});
    return value;
  }

  std::uint64_t seed_;
  shared_group group_;
  std::vector<parameter> parameters_;
};

/// Each rank has some of the outputs: replicated [..., in] -> [..., out / ranks]
struct column_linear {
  at::Tensor weight, bias;

  column_linear(parameter_maker& make, const std::string& name, std::int64_t in, std::int64_t out,
                double deviation, std::int64_t blocks = 1)
      : weight(make.normal(name + ".weight", {out, in}, deviation, cut{0, blocks})),
        bias(make.zeros(name + ".bias", out, cut{0, blocks})) {}

  at::Tensor operator()(const at::Tensor& x, weight_stash* stash, const shared_group& group) const {
    return column_parallel_linear(x, weight, bias, stash, group);
  }
};

/// Each rank takes some of the inputs: [..., in / ranks] -> replicated [..., out]
struct row_linear {
  at::Tensor weight, bias;

  row_linear(parameter_maker& make, const std::string& name, std::int64_t in, std::int64_t out,
             double deviation)
      : weight(make.normal(name + ".weight", {out, in}, deviation, cut{1})),
        bias(make.zeros(name + ".bias", out)) {}

  at::Tensor operator()(const at::Tensor& x, weight_stash* stash, const shared_group& group) const {
    return row_parallel_linear(x, weight, bias, stash, group);
  }
};

struct norm_layer {
  at::Tensor weight, bias;

  norm_layer(parameter_maker& make, const std::string& name, std::int64_t width)
      : weight(make.ones(name + ".weight", width)), bias(make.zeros(name + ".bias", width)) {}

  at::Tensor operator()(const at::Tensor& x) const {
    return at::layer_norm(x, {weight.size(0)}, weight, bias, norm_epsilon);
  }
};

/// [B, T, hidden] -> [B, T, hidden]; each rank computes some of the heads.
struct attention {
  std::int64_t head_width;
  column_linear qkv;
  row_linear projection;

  attention(parameter_maker& make, const std::string& name, const job::model_options& m)
      : head_width(m.hidden / m.heads),
        qkv(make, name + ".qkv", m.hidden, 3 * std::int64_t{m.hidden}, initial_deviation, 3),
        projection(make, name + ".projection", m.hidden, m.hidden,
                   initial_deviation / std::sqrt(2.0 * m.layers)) {}

  at::Tensor operator()(const at::Tensor& x, weight_stash* stash, const shared_group& group) const {
    const auto width = qkv.weight.size(0) / 3;  // of this rank's heads
    const auto parts = qkv(x, stash, group).split(width, -1);
    const auto by_head = [&](const at::Tensor& t) {
      return t.view({x.size(0), x.size(1), width / head_width, head_width}).transpose(1, 2);
    };
    const auto y = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]),
                                                    by_head(parts[2]), /*attn_mask=*/{},
                                                    /*dropout_p=*/0.0, /*is_causal=*/true);
    return projection(y.transpose(1, 2).reshape({x.size(0), x.size(1), width}), stash, group);
  }
};

struct feed_forward {
  column_linear up;
  row_linear down;

  feed_forward(parameter_maker& make, const std::string& name, const job::model_options& m,
               std::int64_t width)
      : up(make, name + ".up", m.hidden, width, initial_deviation),
        down(make, name + ".down", width, m.hidden, initial_deviation / std::sqrt(2.0 * m.layers)) {
  }

  at::Tensor operator()(const at::Tensor& x, weight_stash* stash, const shared_group& group) const {
    return down(at::gelu(up(x, stash, group)), stash, group);
  }
};

struct block {
  std::uint32_t number;
  norm_layer attention_norm;
  attention attend;
  norm_layer feed_forward_norm;
  feed_forward feed;

  block(parameter_maker& make, std::uint32_t n, const job::model_options& m, std::int64_t width)
      : number(n),
        attention_norm(make, "layers." + std::to_string(n) + ".attention_norm", m.hidden),
        attend(make, "layers." + std::to_string(n) + ".attention", m),
        feed_forward_norm(make, "layers." + std::to_string(n) + ".feed_forward_norm", m.hidden),
        feed(make, "layers." + std::to_string(n) + ".feed_forward", m, width) {}
};

class gpt_chunk final : public stage_module {
 public:
  gpt_chunk(const job::model_options& m, virtual_stage_id vs, std::uint32_t virtual_stages,
            std::uint64_t seed, shared_group group)
      : seed_(seed), dropout_(m.dropout), group_(std::move(group)) {
    parameter_maker make(seed, group_);
    const bool is_first = vs.value() == 0;
    const bool is_last = vs.value() + 1 == virtual_stages;
    const std::int64_t hidden = m.hidden;
    const auto width = m.feed_forward != 0 ? std::int64_t{m.feed_forward} : 4 * hidden;
    const std::string token_name = "embedding.tokens.weight";
    if (is_first) {
      tokens_ = make.normal(token_name, {m.vocabulary, hidden}, initial_deviation, cut{0},
                            m.tied_head ? tie::owner : tie::none);
      positions_ =
          make.normal("embedding.positions.weight", {m.context, hidden}, initial_deviation);
    }
    const auto layers = layers_of(m.layers, vs, virtual_stages);
    blocks_.reserve(layers.count);
    for (std::uint32_t i = 0; i < layers.count; ++i) {
      blocks_.emplace_back(make, layers.first + i, m, width);
    }
    if (is_last) {
      norm_.emplace(make, "norm", hidden);
      head_ = m.tied_head
                  ? make.normal(token_name, {m.vocabulary, hidden}, initial_deviation, cut{0},
                                tie::copy)
                  : make.normal("head.weight", {m.vocabulary, hidden}, initial_deviation, cut{0});
    }
    parameters_ = make.take();
  }

  std::span<const parameter> parameters() const override { return parameters_; }

  at::Tensor forward(const forward_input& in) override {
    auto x = in.input;
    if (tokens_.defined()) x = embed(in);
    for (const auto& b : blocks_) {
      x = x + drop(b.attend(b.attention_norm(x), in.stash, group_), in, b.number, site::attention);
      x = x +
          drop(b.feed(b.feed_forward_norm(x), in.stash, group_), in, b.number, site::feed_forward);
    }
    return head_.defined() ? loss(x, in) : x;
  }

 private:
  at::Tensor embed(const forward_input& in) const {
    const auto length = in.input.size(1);
    TORCH_CHECK(length <= positions_.size(0), "a sequence of ", length,
                " tokens is longer than model.context = ", positions_.size(0));
    const auto places = at::arange(length, in.input.options());
    const auto x = parallel_embedding(in.input, tokens_, in.stash, group_) +
                   embedding(places, positions_, in.stash);
    return drop(x, in, 0, site::embedding);
  }

  at::Tensor loss(const at::Tensor& x, const forward_input& in) const {
    const auto logits = column_parallel_linear((*norm_)(x), head_, {}, in.stash, group_);
    return parallel_cross_entropy(logits.view({-1, logits.size(-1)}), in.targets.reshape({-1}),
                                  group_);
  }

  at::Tensor drop(const at::Tensor& x, const forward_input& in, std::uint32_t layer,
                  site where) const {
    return dropout(x, dropout_, {seed_, in.step, in.mb, layer, static_cast<std::uint32_t>(where)});
  }

  std::uint64_t seed_;
  double dropout_;
  shared_group group_;
  at::Tensor tokens_, positions_;  // first chunk only
  std::vector<block> blocks_;
  std::optional<norm_layer> norm_;  // last chunk only
  at::Tensor head_;
  std::vector<parameter> parameters_;
};

status check(const job::model_options& m, std::uint32_t virtual_stages) {
  if (m.layers == 0 || m.hidden == 0 || m.heads == 0 || m.vocabulary == 0 || m.context == 0) {
    return error{"model.layers, hidden, heads, vocabulary and context must be at least 1"};
  }
  if (m.hidden % m.heads != 0) {
    return error{"model.hidden = " + std::to_string(m.hidden) +
                 " is not a multiple of model.heads = " + std::to_string(m.heads)};
  }
  if (!(m.dropout >= 0 && m.dropout < 1)) {
    return error{"model.dropout = " + std::to_string(m.dropout) + " is not in [0, 1)"};
  }
  if (m.layers < virtual_stages) {
    return error{"model.layers = " + std::to_string(m.layers) + " is less than the " +
                 std::to_string(virtual_stages) +
                 " parts that pipeline.stages * pipeline.chunks asks for"};
  }
  return success();
}

}  // namespace

status check_ranks(const job::model_options& m, std::uint32_t ranks) {
  const auto divides = [&](const char* key, std::uint64_t n) -> status {
    if (n % ranks == 0) return success();
    return error{std::string(key) + " = " + std::to_string(n) +
                 " is not a multiple of pipeline.tp = " + std::to_string(ranks)};
  };
  if (auto ok = divides("model.heads", m.heads); !ok) return ok;
  if (m.feed_forward != 0) {
    if (auto ok = divides("model.feed_forward", m.feed_forward); !ok) return ok;
  }
  return divides("model.vocabulary", m.vocabulary);
}

result<std::unique_ptr<stage_module>> make_gpt_chunk(const job::model_options& model,
                                                     virtual_stage_id vs,
                                                     std::uint32_t virtual_stages,
                                                     std::uint64_t seed,
                                                     std::shared_ptr<rank_group> group) {
  RRFP_CHECK(vs.value() < virtual_stages, "a chunk beyond the end of the model");
  if (auto ok = check(model, virtual_stages); !ok) return ok.failure();
  if (group != nullptr) {
    if (auto ok = check_ranks(model, group->size()); !ok) return ok.failure();
  }
  return std::unique_ptr<stage_module>(
      std::make_unique<gpt_chunk>(model, vs, virtual_stages, seed, std::move(group)));
}

}  // namespace rrfp::compute
