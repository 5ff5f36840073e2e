#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/job/model_rules.hpp>
#include <rrfp/torch/batch_source.hpp>
#include <rrfp/torch/model.hpp>
#include <rrfp/torch/parallel_operators.hpp>

#include "decoder.hpp"
#include "vision.hpp"

namespace rrfp::compute {

namespace {

/// The input of the decoder: token embedding, learned positions, and the projector for images.
struct decoder_entry {
  at::Tensor tokens;
  at::Tensor positions;  // learned ones, or undefined
  std::optional<projector> project;

  decoder_entry(parameter_maker& make, const decoder_names& names, const job::model_options& m)
      : tokens(make.normal(names.tokens, {m.vocabulary, m.hidden}, initial_deviation,
                           {.partition = cut{}, .tied = m.tied_head ? tie::owner : tie::none})) {
    if (!names.positions.empty())
      positions = make.normal(names.positions, {m.context, m.hidden}, initial_deviation);
    if (m.vision.layers > 0) project.emplace(make, m);
  }
};

struct decoder_exit {
  norm_layer norm;
  at::Tensor head;

  decoder_exit(parameter_maker& make, const decoder_names& names, const job::model_options& m)
      : norm(make, names.norm, m.hidden, norm_kind_of(m), m.norm_epsilon),
        head(make.normal(m.tied_head ? names.tokens : names.head, {m.vocabulary, m.hidden},
                         initial_deviation,
                         {.partition = cut{}, .tied = m.tied_head ? tie::copy : tie::none})) {}
};

class model_chunk final : public stage_module {
 public:
  model_chunk(const job::model_options& m, layer_range layers, std::uint64_t seed,
              shared_group group, at::Device parameter_device = at::kCPU)
      : model_(m),
        type_(m.precision == job::precision_kind::bf16 ? at::kBFloat16 : at::kFloat),
        seed_(seed),
        group_(std::move(group)),
        rotary_(make_rotary(m)) {
    parameter_maker make(seed, group_, parameter_device);
    const auto names = decoder_names::of(m);
    const auto images = m.vision.layers;
    const auto end = layers.first + layers.count;
    if (layers.first == 0 && images > 0) patches_.emplace(make, m.vision, type_);
    encoder_.reserve(layers.count);
    decoder_.reserve(layers.count);
    for (auto n = layers.first; n < end; ++n) {
      if (n < images) {
        encoder_.emplace_back(make, n, m.vision);
        continue;
      }
      if (n == images) entry_.emplace(make, names, m);
      decoder_.emplace_back(make, names, n - images, m);
    }
    if (end == job::all_layers_of(m)) exit_.emplace(make, names, m);
    parameters_ = make.take_parameters();
  }

  status check(const microbatch& mb) const override {
    const auto is_ids = [](const at::Tensor& x) {
      return x.defined() && (x.dim() == 1 || x.dim() == 2) && x.scalar_type() == at::kLong;
    };
    const bool fits =
        is_ids(mb.inputs) && is_ids(mb.targets) && mb.inputs.sizes().equals(mb.targets.sizes());
    const auto packed = std::accumulate(mb.lengths.begin(), mb.lengths.end(), std::int64_t{0});
    if (fits && packed == (mb.inputs.dim() == 1 ? mb.inputs.numel() : 0)) return success();
    return error{
        "the batch source must give inputs and targets as int64, both [B, T] or both [N] with the "
        "lengths of the sequences, N together"};
  }

  std::span<const parameter> parameters() const override { return parameters_; }

  at::Tensor forward(const forward_input& in) override {
    auto x = in.input;
    if (patches_ || !encoder_.empty() || (entry_ && entry_->project)) x = encode(x, in);
    return decoder_.empty() ? x : decode(x, in);
  }

 private:
  /// Everything before the decoder's first layer: patches, encoder and projector.
  at::Tensor encode(at::Tensor x, const forward_input& in) const {
    TORCH_CHECK(in.batch != nullptr, "a model with images needs a microbatch view");
    const auto lengths = encoder_rows(in.batch->layout().images, model_.vision);
    const packing rows(lengths, device());
    // Without images there is nothing to compute, and the weights get no gradient.
    if (rows.rows() == 0) {
      if (patches_)
        x = at::zeros({0, std::int64_t{model_.vision.hidden}},
                      at::TensorOptions{type_}.device(device()));
      return entry_ ? embed(in, {}) : x;
    }
    const layer_context c{in.stash, group_, rows};
    if (patches_) x = (*patches_)(in.batch->whole().images, c);
    for (const auto& layer : encoder_) x = layer(std::move(x), c);
    return entry_ ? embed(in, (*entry_->project)(x, c)) : x;
  }

  /// Embeds the tokens and replaces image tokens by image features.
  at::Tensor embed(const forward_input& in, const at::Tensor& features) const {
    const auto& ids = entry_->project ? in.batch->text().inputs : in.input;
    const auto tokens = ids.reshape({-1});
    auto x = parallel_embedding(tokens, entry_->tokens, in.stash, group_).to(type_);
    if (!entry_->project) return x;
    const auto places = tokens.eq(std::int64_t{model_.vision.image_token}).nonzero().flatten();
    const auto rows = features.defined() ? features.size(0) : 0;
    TORCH_CHECK(places.size(0) == rows, "the text has ", places.size(0), " image tokens (",
                model_.vision.image_token, "), but its images have ", rows, " patches");
    return rows == 0 ? x : x.index_copy(0, places, features.to(x.scalar_type()));
  }

  at::Tensor decode(at::Tensor x, const forward_input& in) const {
    const packing rows(lengths_of(in), device());
    layer_context c{in.stash, group_, rows};
    const residual_dropout drop = [&](const at::Tensor& t, std::uint32_t layer, dropout_site site) {
      return dropout(t, in.training ? model_.dropout : 0,
                     {seed_, in.step, in.mb, layer, static_cast<std::uint32_t>(site)});
    };
    if (entry_) {
      if (!entry_->project) x = embed(in, {});
      TORCH_CHECK(rows.longest() <= model_.context, "a sequence of ", rows.longest(),
                  " tokens is longer than model.context = ", model_.context);
      if (entry_->positions.defined())
        x = x + embedding(rows.positions(), entry_->positions, in.stash).to(type_);
      x = drop(x, 0, dropout_site::embedding);
    }
    if (rotary_) std::tie(c.cosines, c.sines) = rotary_->at_positions(rows.positions());
    for (const auto& layer : decoder_) x = layer(std::move(x), c, drop);
    return exit_ ? compute_output(x, in) : x;
  }

  at::Tensor compute_output(const at::Tensor& x, const forward_input& in) const {
    const auto shared = copy_to_group(exit_->norm(x), group_);
    const auto logits = linear(shared, exit_->head, {}, in.stash).to(at::kFloat);
    if (!in.targets.defined()) return logits;
    return parallel_cross_entropy(logits, in.targets.reshape({-1}), group_);
  }

  /// Read on each use, because the stage moves the parameters after the chunk is created.
  at::Device device() const { return parameters_.front().value.device(); }

  std::vector<std::int64_t> lengths_of(const forward_input& in) const {
    if (in.batch != nullptr) return in.batch->layout().lengths;
    const auto& like = entry_ ? in.input : in.targets;
    TORCH_CHECK(like.defined() && like.dim() == 2, "a chunk in the middle needs a microbatch view");
    return std::vector<std::int64_t>(static_cast<std::size_t>(like.size(0)), like.size(1));
  }

  job::model_options model_;
  at::ScalarType type_;  // compute type
  std::uint64_t seed_;
  shared_group group_;
  std::optional<rotary_positions> rotary_;
  std::optional<patch_embedding> patches_;  // first chunk of a model with images
  std::vector<encoder_layer> encoder_;
  std::optional<decoder_entry> entry_;  // with the decoder's first layer
  std::vector<decoder_layer> decoder_;
  std::optional<decoder_exit> exit_;  // last chunk
  std::vector<parameter> parameters_;
};

}  // namespace

result<std::unique_ptr<stage_module>> make_model_chunk(const job::model_options& model,
                                                       layer_range layers, std::uint64_t seed,
                                                       std::shared_ptr<rank_group> group) {
  const auto ranks = group == nullptr ? 1 : group->size();
  if (const auto fault = job::fault_of(model, 1, ranks))
    return error{fault->key + ": expected " + fault->expected + ", got " + fault->got};
  RRFP_CHECK(layers.count > 0 && layers.first + layers.count <= job::all_layers_of(model),
             "a chunk holds layers of the model");
  return std::unique_ptr<stage_module>(
      std::make_unique<model_chunk>(model, layers, seed, std::move(group)));
}

result<std::vector<parameter>> parameters_of(const job::model_options& model) {
  if (const auto fault = job::fault_of(model, 1, 1))
    return error{fault->key + ": expected " + fault->expected + ", got " + fault->got};
  const model_chunk whole(model, {0, job::all_layers_of(model)}, 0, nullptr, at::kMeta);
  return std::vector<parameter>{whole.parameters().begin(), whole.parameters().end()};
}

}  // namespace rrfp::compute
