#include <algorithm>

#include <rrfp/compute/estimate.hpp>

namespace rrfp::compute {

namespace {

constexpr std::uint64_t float_bytes = 4;
constexpr std::uint64_t id_bytes = 8;

struct sizes {
  std::uint64_t hidden, feed_forward, heads, vocabulary, context, length, tokens;
  std::uint64_t ranks;
  bool drops;
};

sizes sizes_of(const job::model_options& m, const job::data_options& d, std::uint32_t ranks) {
  return {m.hidden,
          m.feed_forward != 0 ? m.feed_forward : 4ull * m.hidden,
          m.heads,
          m.vocabulary,
          m.context,
          d.sequence_length,
          std::uint64_t{d.microbatch_size} * d.sequence_length,
          ranks,
          m.dropout > 0};
}

void add_embedding(chunk_estimate& e, const sizes& s) {
  e.parameters += (s.vocabulary / s.ranks + s.context) * s.hidden;
  e.weight_flops += static_cast<double>(s.tokens * s.hidden);
  e.activation_bytes += (s.tokens + s.length) * id_bytes + (s.drops ? s.tokens * s.hidden : 0);
  // All token rows may be those of one rank. The gradients of the token rows and, summed over the
  // sequences, of the position rows.
  e.pending_weight_bytes += (s.tokens + s.length) * (s.hidden * float_bytes + id_bytes);
}

void add_layer(chunk_estimate& e, const sizes& s) {
  const auto h = s.hidden;
  const auto f = s.feed_forward / s.ranks;
  const auto a = h / s.ranks;  // width of the rank's heads
  // qkv and the projection, up and down, with their biases; both norms.
  e.parameters += (3 * h * a + 3 * a) + (a * h + h) + (h * f + f) + (f * h + h) + 4 * h;
  const auto linear = static_cast<double>(2 * s.tokens * (4 * h * a + 2 * h * f));
  // Q * K^T and P * V, half of them masked; B recomputes the first and has four products of its
  // own.
  const auto attention = static_cast<double>(2 * s.tokens * s.length * a);
  e.forward_flops += linear + attention;
  e.backward_flops += linear + 2.5 * attention;
  e.weight_flops += linear;
  // Both norms keep their input, the linear layers theirs, attention q, k, v and its output (which
  // is the projection's input), GELU its input; a row of statistics for each norm and head.
  const auto wide = 4 * h + 4 * a + 2 * f;
  const auto statistics = 4 + s.heads / s.ranks;
  e.activation_bytes += s.tokens * (wide + statistics) * float_bytes;
  if (s.drops) e.activation_bytes += 2 * s.tokens * h;
  // (input, output gradient) of the four linear layers; both norms leave their small gradients.
  e.pending_weight_bytes += (s.tokens * wide + 4 * h) * float_bytes;
}

void add_head(chunk_estimate& e, const sizes& s, bool tied) {
  const auto vocabulary = s.vocabulary / s.ranks;
  e.parameters += 2 * s.hidden + (tied ? 0 : vocabulary * s.hidden);
  const auto linear = static_cast<double>(2 * s.tokens * s.hidden * vocabulary);
  e.forward_flops += linear;
  e.backward_flops += linear;
  e.weight_flops += linear;
  // The norm's input and output, the log-probabilities, the targets.
  e.activation_bytes += s.tokens * ((2 * s.hidden + 2 + vocabulary) * float_bytes + id_bytes);
  e.pending_weight_bytes += (s.tokens * (s.hidden + vocabulary) + 2 * s.hidden) * float_bytes;
}

}  // namespace

layer_range layers_of(std::uint32_t layers, virtual_stage_id vs, std::uint32_t virtual_stages) {
  const auto even = layers / virtual_stages;
  const auto remainder = layers % virtual_stages;
  const auto k = vs.value();
  return {k * even + std::min(k, remainder), even + (k < remainder ? 1u : 0u)};
}

std::vector<chunk_estimate> estimate(const job::model_options& model, const job::data_options& data,
                                     const pipeline_shape& shape, std::uint32_t ranks) {
  const auto s = sizes_of(model, data, ranks);
  std::vector<chunk_estimate> chunks(shape.virtual_stages());
  for (std::uint32_t k = 0; k < chunks.size(); ++k) {
    auto& e = chunks[k];
    e.vs = virtual_stage_id{k};
    e.layers = layers_of(model.layers, e.vs, shape.virtual_stages());
    if (shape.is_first(e.vs)) add_embedding(e, s);
    for (std::uint32_t i = 0; i < e.layers.count; ++i) add_layer(e, s);
    if (shape.is_last(e.vs)) {
      add_head(e, s, model.tied_head);
    } else {
      e.boundary_bytes = s.tokens * s.hidden * float_bytes;
    }
  }
  return chunks;
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
