/// The derived sizes of a model, and the rules that its sizes must satisfy. Shared by the checks of
/// a job, which name keys and lines, and by the code that builds the model. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/job/options.hpp>

namespace rrfp::job {

inline std::uint32_t head_width_of(const model_options& m) {
  return m.head_width != 0 ? m.head_width : m.hidden / m.heads;
}

inline std::uint32_t kv_heads_of(const model_options& m) {
  return m.kv_heads != 0 ? m.kv_heads : m.heads;
}

inline std::uint32_t feed_forward_of(const model_options& m) {
  return m.feed_forward != 0 ? m.feed_forward : 4 * m.hidden;
}

inline std::uint32_t feed_forward_of(const vision_options& v) {
  return v.feed_forward != 0 ? v.feed_forward : 4 * v.hidden;
}

inline activation_kind activation_of(const model_options& m) {
  if (m.activation) return *m.activation;
  return m.family == architecture::gpt2 ? activation_kind::gelu_tanh : activation_kind::silu;
}

/// Number of encoder and decoder layers; the pipeline cuts this sequence into stages.
inline std::uint32_t all_layers_of(const model_options& m) { return m.vision.layers + m.layers; }

/// The number of layers of each of `parts`, as even as possible: earlier parts get the remainder.
inline std::vector<std::uint32_t> even_cut(std::uint32_t layers, std::uint32_t parts) {
  std::vector<std::uint32_t> counts(parts, layers / parts);
  for (std::uint32_t i = 0; i < layers % parts; ++i) ++counts[i];
  return counts;
}

/// Why a model is invalid: "KEY: expected EXPECTED, got GOT".
struct model_fault {
  std::string key;
  /// Ends with the value of `other`, unless that is empty.
  std::string expected;
  std::string got;
  std::string other = {};
};

/// The first rule that the model breaks when it is cut into `virtual_stages` chunks with `ranks`
/// tensor-parallel ranks each; nothing if it is valid.
inline std::optional<model_fault> fault_of(const model_options& m, std::uint32_t virtual_stages,
                                           std::uint32_t ranks) {
  using maybe = std::optional<model_fault>;
  const auto text = [](std::uint64_t n) { return std::to_string(n); };
  const auto multiple = [&](const char* key, std::uint64_t n, const char* other,
                            std::uint64_t divisor) -> maybe {
    if (divisor != 0 && n % divisor == 0) return std::nullopt;
    return model_fault{key, std::string("a multiple of ") + other + " = " + text(divisor), text(n),
                       other};
  };
  const auto shared = [&](const char* key, std::uint64_t n) {
    return multiple(key, n, "pipeline.tp", ranks);
  };
  maybe f;

  const std::pair<const char*, std::uint32_t> sizes[] = {{"model.layers", m.layers},
                                                         {"model.hidden", m.hidden},
                                                         {"model.heads", m.heads},
                                                         {"model.vocabulary", m.vocabulary},
                                                         {"model.context", m.context}};
  for (const auto& [key, n] : sizes)
    if (n == 0) return model_fault{key, "at least 1", "0"};
  if (!(m.dropout >= 0 && m.dropout < 1))
    return model_fault{"model.dropout", "a number in [0, 1)", std::to_string(m.dropout)};
  if (m.head_width == 0)
    if ((f = multiple("model.hidden", m.hidden, "model.heads", m.heads))) return f;
  if ((f = multiple("model.heads", m.heads, "model.kv_heads", kv_heads_of(m)))) return f;
  if (m.family == architecture::gpt2) {
    if (kv_heads_of(m) != m.heads)
      return model_fault{"model.kv_heads", "for gpt2 model.heads = " + text(m.heads),
                         text(m.kv_heads), "model.heads"};
  } else if (head_width_of(m) % 2 != 0) {
    return model_fault{"model.head_width", "an even number, for rotary positions",
                       text(head_width_of(m))};
  }
  if ((f = shared("model.heads", m.heads))) return f;
  if ((f = shared("model.kv_heads", kv_heads_of(m)))) return f;
  if ((f = shared("model.feed_forward", feed_forward_of(m)))) return f;
  if ((f = shared("model.vocabulary", m.vocabulary))) return f;

  const auto& v = m.vision;
  if (v.layers > 0) {
    if ((f = multiple("vision.hidden", v.hidden, "vision.heads", v.heads))) return f;
    if (v.patch == 0 || v.image_size < v.patch)
      return model_fault{"vision.image_size", "at least vision.patch = " + text(v.patch),
                         text(v.image_size), "vision.patch"};
    if ((f = shared("vision.heads", v.heads))) return f;
    if ((f = shared("vision.feed_forward", feed_forward_of(v)))) return f;
    if ((f = shared("model.hidden", m.hidden))) return f;  // tp also splits the projector
    if (v.image_token >= m.vocabulary)
      return model_fault{"vision.image_token", "less than model.vocabulary = " + text(m.vocabulary),
                         text(v.image_token), "model.vocabulary"};
  }
  if (all_layers_of(m) < virtual_stages)
    return model_fault{"model.layers",
                       std::string("at least pipeline.stages * pipeline.chunks = ") +
                           text(virtual_stages) + (v.layers > 0 ? " with vision.layers" : ""),
                       text(all_layers_of(m))};
  return std::nullopt;
}

}  // namespace rrfp::job
