#include <algorithm>
#include <numeric>

#include <rrfp/base/check.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/job/model_rules.hpp>

namespace rrfp::compute {

namespace {

constexpr std::uint64_t float_bytes = 4;

/// Bytes of an activation element.
std::uint64_t item_bytes(const job::model_options& m) {
  return m.precision == job::precision_kind::bf16 ? 2 : float_bytes;
}

constexpr std::uint64_t id_bytes = 8;

/// Rows that a part of the model processes, and the row pairs that attention compares.
struct rows {
  std::uint64_t count = 0;
  std::uint64_t pairs = 0;
  /// The sequences differ in length, so attention computes them in several parts.
  bool is_mixed = false;

  void add(std::uint64_t length) {
    is_mixed = is_mixed || (count > 0 && length != last_);
    last_ = length;
    count += length;
    pairs += length * length;
  }

 private:
  std::uint64_t last_ = 0;
};

/// A transformer layer on one rank.
struct layer_sizes {
  std::uint64_t hidden, attention, kv, heads, feed_forward;
  bool gated, attention_bias, mlp_bias, root_mean_square, head_norms, causal, drops;
  std::uint64_t head_width;
  std::uint64_t item;
  std::uint64_t heads_repeated;  // heads for which keys and values are repeated; 0: none
};

layer_sizes decoder_layer_of(const job::model_options& m, std::uint64_t ranks) {
  const bool gpt2 = m.family == job::architecture::gpt2;
  const std::uint64_t width = job::head_width_of(m), kv_heads = job::kv_heads_of(m);
  return {.hidden = m.hidden,
          .attention = width * m.heads / ranks,
          .kv = width * kv_heads / ranks,
          .heads = m.heads / ranks,
          .feed_forward = job::feed_forward_of(m) / ranks,
          .gated = !gpt2,
          .attention_bias = gpt2 || m.attention_bias,
          .mlp_bias = gpt2 || m.mlp_bias,
          .root_mean_square = !gpt2,
          .head_norms = m.family == job::architecture::qwen3,
          .causal = true,
          .drops = m.dropout > 0,
          .head_width = width,
          .item = item_bytes(m),
          .heads_repeated = kv_heads == m.heads ? 0u : m.heads / ranks};
}

layer_sizes encoder_layer_of(const job::vision_options& v, std::uint64_t item,
                             std::uint64_t ranks) {
  return {.hidden = v.hidden,
          .attention = v.hidden / ranks,
          .kv = v.hidden / ranks,
          .heads = v.heads / ranks,
          .feed_forward = job::feed_forward_of(v) / ranks,
          .gated = false,
          .attention_bias = true,
          .mlp_bias = true,
          .root_mean_square = false,
          .head_norms = false,
          .causal = false,
          .drops = false,
          .head_width = v.hidden / v.heads,
          .item = item,
          .heads_repeated = 0};
}

void add_layer(chunk_estimate& e, const layer_sizes& s, const rows& r) {
  const auto h = s.hidden, a = s.attention, f = s.feed_forward;
  const std::uint64_t wide_products = s.gated ? 3 : 2;
  e.parameters += 2 * h * a + 2 * h * s.kv + wide_products * h * f;
  if (s.attention_bias) e.parameters += a + 2 * s.kv + h;
  if (s.mlp_bias) e.parameters += (wide_products - 1) * f + h;
  e.parameters += (s.root_mean_square ? 2 : 4) * h + (s.head_norms ? 2 * s.head_width : 0);

  const auto linear =
      static_cast<double>(2 * r.count * (2 * h * a + 2 * h * s.kv + wide_products * h * f));
  // Q * K^T and P * V, half of them masked in a decoder. B recomputes the first and has four
  // products of its own.
  const auto attention = static_cast<double>((s.causal ? 2 : 4) * r.pairs * a);
  e.forward_flops += linear + attention;
  e.backward_flops += linear + 2.5 * attention;
  e.weight_flops += linear;

  // Kept for B: the input of each norm, and for RMS norms the normalised input, too; the inputs of
  // the linear layers; q, k, v and the output of attention (the input of the projection); the input
  // of the activation; both factors of a gate; one statistic per row for each norm and head.
  auto kept = 4 * h + 2 * a + 2 * (s.heads_repeated > 0 ? a : s.kv) + 2 * f;
  if (s.gated) kept += 2 * f;
  if (r.is_mixed) kept += a;  // the parts and their concatenation
  // RMS norms compute in float32: they keep a wide copy of narrow input.
  std::uint64_t wide = 0;
  const bool narrow = s.item != float_bytes;
  if (s.root_mean_square) {
    wide = (narrow ? 4 : 2) * h;
    if (narrow) kept += 4 * s.head_width - 2 * h;  // narrow copies of the rotary angles
  }
  if (s.head_norms) wide += 2 * (a + s.kv);
  const auto statistics =
      (s.root_mean_square ? 2 : 4) + s.heads + (s.head_norms ? s.heads + s.kv / s.head_width : 0);
  e.activation_bytes += r.count * (kept * s.item + (wide + statistics) * float_bytes);
  if (s.drops) e.activation_bytes += 2 * r.count * h;
  // (input, output gradient) of the linear layers, which share a common input; and the small
  // gradients of the norms.
  const auto pending = (h + a + 2 * s.kv) + (a + h) + (h + (wide_products - 1) * f) + (f + h);
  e.pending_weight_bytes +=
      r.count * pending * s.item + (s.root_mean_square ? 2 : 4) * h * float_bytes;
}

void add_patches(chunk_estimate& e, const job::vision_options& v, const rows& images,
                 std::uint64_t patches, std::uint64_t item) {
  const std::uint64_t pixels = 3ull * v.patch * v.patch, grid = v.image_size / v.patch;
  e.parameters +=
      pixels * v.hidden + v.hidden + grid * grid * v.hidden + (v.class_token ? 2 * v.hidden : 0);
  const auto linear = static_cast<double>(2 * patches * pixels * v.hidden);
  e.forward_flops += linear;
  e.weight_flops += linear;
  e.activation_bytes += patches * pixels * item;
  e.pending_weight_bytes +=
      patches * (pixels + v.hidden) * item + images.count * v.hidden * float_bytes;
}

void add_entry(chunk_estimate& e, const job::model_options& m, const rows& text,
               std::uint64_t patches, std::uint64_t ranks) {
  const std::uint64_t hidden = m.hidden;
  const bool learned = m.family == job::architecture::gpt2;
  e.parameters += m.vocabulary / ranks * hidden + (learned ? m.context * hidden : 0);
  e.weight_flops += static_cast<double>(text.count * hidden);
  e.activation_bytes += text.count * id_bytes * (learned ? 2 : 1);
  if (m.dropout > 0) e.activation_bytes += text.count * hidden;
  // In the worst case all token rows belong to one rank. Tokens and positions share their row
  // gradients, except for wide copies of narrow ones.
  const std::uint64_t gradients = learned && item_bytes(m) != float_bytes ? 2 : 1;
  e.pending_weight_bytes +=
      text.count * (gradients * hidden * float_bytes + (learned ? 2 : 1) * id_bytes);
  if (m.vision.layers == 0) return;
  const auto wide = hidden / ranks;
  e.parameters += m.vision.hidden * wide + wide + wide * hidden + hidden;
  const auto linear = static_cast<double>(2 * patches * (m.vision.hidden * wide + wide * hidden));
  e.forward_flops += linear;
  e.backward_flops += linear;
  e.weight_flops += linear;
  const auto kept = patches * (m.vision.hidden + 2 * wide);
  e.activation_bytes += kept * item_bytes(m);
  e.pending_weight_bytes += (kept + patches * hidden) * item_bytes(m);
}

void add_exit(chunk_estimate& e, const job::model_options& m, const rows& text,
              std::uint64_t ranks) {
  const std::uint64_t hidden = m.hidden, vocabulary = m.vocabulary / ranks;
  const std::uint64_t norms = m.family == job::architecture::gpt2 ? 2 : 1;
  e.parameters += norms * hidden + (m.tied_head ? 0 : vocabulary * hidden);
  const auto linear = static_cast<double>(2 * text.count * hidden * vocabulary);
  e.forward_flops += linear;
  e.backward_flops += linear;
  e.weight_flops += linear;
  // The norm's input and output, the log-probabilities and the targets; narrow logits have a wide
  // copy.
  const auto item = item_bytes(m);
  auto normed = 2 * hidden * item;
  if (m.family != job::architecture::gpt2)
    normed = item == float_bytes ? 3 * hidden * item : 2 * hidden * float_bytes + hidden * item;
  e.activation_bytes += text.count * (normed + (vocabulary + norms) * float_bytes + id_bytes);
  e.pending_weight_bytes +=
      text.count * (hidden + vocabulary) * item + norms * hidden * float_bytes;
}

}  // namespace

microbatch_layout expected_layout(const job::model_options& model, const job::data_options& data) {
  microbatch_layout mb;
  const auto sequences = data.microbatch_tokens() / data.sequence_length;
  mb.lengths.assign(sequences, data.sequence_length);
  const std::int64_t side = model.vision.image_size;
  if (model.vision.layers > 0) mb.images.assign(sequences, {side, side});
  return mb;
}

layer_range layers_of(const std::vector<std::uint32_t>& cut, virtual_stage_id vs) {
  const auto own = cut.begin() + vs.value();
  return {std::accumulate(cut.begin(), own, 0U), *own};
}

std::vector<chunk_estimate> estimate(const job::model_options& model, const microbatch_layout& mb,
                                     const std::vector<std::uint32_t>& cut, std::uint32_t ranks,
                                     bool recompute) {
  RRFP_CHECK(std::accumulate(cut.begin(), cut.end(), 0U) == job::all_layers_of(model),
             "the cut must hold every layer once");
  const auto& vision = model.vision;
  rows text, images;
  const auto item = item_bytes(model);
  std::uint64_t patches = 0;
  for (const auto length : mb.lengths) text.add(static_cast<std::uint64_t>(length));
  for (const auto& i : mb.images) {
    const auto of_image =
        static_cast<std::uint64_t>((i.height / vision.patch) * (i.width / vision.patch));
    patches += of_image;
    images.add(of_image + (vision.class_token ? 1 : 0));
  }
  std::vector<chunk_estimate> chunks(cut.size());
  std::uint64_t input_bytes = 0;
  for (std::uint32_t k = 0; k < chunks.size(); ++k) {
    auto& e = chunks[k];
    e.vs = virtual_stage_id{k};
    e.layers = layers_of(cut, e.vs);
    if (k == 0 && vision.layers > 0) add_patches(e, vision, images, patches, item);
    const auto end = e.layers.first + e.layers.count;
    // All layers share the angles of rotary positions.
    if (end > vision.layers && model.family != job::architecture::gpt2)
      e.activation_bytes += text.count * 2 * job::head_width_of(model) * float_bytes;
    for (auto n = e.layers.first; n < end; ++n) {
      if (n == vision.layers) add_entry(e, model, text, patches, ranks);
      if (n < vision.layers) {
        add_layer(e, encoder_layer_of(vision, item, ranks), images);
      } else {
        add_layer(e, decoder_layer_of(model, ranks), text);
      }
    }
    if (k + 1 == chunks.size()) {
      add_exit(e, model, text, ranks);
    } else {
      e.boundary_bytes =
          (end <= vision.layers ? images.count * vision.hidden : text.count * model.hidden) * item;
    }
    if (recompute) e.activation_bytes = input_bytes;
    input_bytes = e.boundary_bytes;
  }
  return chunks;
}

double training_flops(const job::model_options& model, const microbatch_layout& mb) {
  const auto whole = estimate(model, mb, {job::all_layers_of(model)}).front();
  return whole.forward_flops + whole.backward_flops + whole.weight_flops;
}

std::uint64_t slot_bytes(const std::vector<chunk_estimate>& chunks, const pipeline_shape& shape,
                         stage_id stage) {
  std::uint64_t bytes = 0;
  for (const auto& e : chunks) {
    if (shape.at(e.vs).stage != stage) continue;
    bytes += std::max(e.activation_bytes, e.pending_weight_bytes);
  }
  return bytes;
}

}  // namespace rrfp::compute
