#include <rrfp/study/pipeline_cost.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <span>

#include <rrfp/base/check.hpp>
#include <rrfp/study/options.hpp>
#include <rrfp/study/presets.hpp>
#include <rrfp/workload/partition.hpp>

namespace rrfp::study {

using namespace workload;

namespace {

/// An FP32 gradient is read and written.
constexpr double gradient_traffic_bytes = 8;
constexpr double state_bytes = 18;
constexpr double gradient_bytes = 4;

/// FLOPs and bytes of one part on one rank, from which the machine's rates give durations.
struct work {
  double matrix_flops = 0;
  double attention_flops = 0;
  double weight_count = 0;
  double activation_bytes = 0;
  /// Bytes of one all-reduce; a layer has two in F and two in B.
  double reduced_bytes = 0;
};

/// Without experts.
work layer_work(const block& b, double tokens, double token_squares, std::uint32_t tp) {
  const auto own = parameters(b) - b.experts * feed_forward_parameters(b);
  return {.matrix_flops = matrix_flops(own, tokens) / tp,
          .attention_flops = attention_flops_of_squares(b, token_squares) / tp,
          .weight_count = static_cast<double>(own) / tp,
          .activation_bytes = tokens * activation_bytes_per_token(b, tp),
          .reduced_bytes = tokens * b.hidden * fp16_bytes};
}

/// On the slowest, and the fullest, of the ranks that share the experts.
struct expert_work {
  double pass_s = 0;  ///< F, and B
  double weight_s = 0;
  double activation_bytes = 0;
};

expert_work work_of_experts(const block& b, double tokens, std::span<const double> shares,
                            std::uint32_t tp, const machine& on) {
  const auto weights = feed_forward_parameters(b);
  const auto weight_count = static_cast<double>(weights);
  const auto of_one = b.experts / tp;
  expert_work most;
  for (std::uint32_t rank = 0; rank < tp; ++rank) {
    expert_work all;
    for (auto e = rank * of_one; e < (rank + 1) * of_one; ++e) {
      const auto share = shares.empty() ? 1.0 / b.experts : shares[e];
      const auto routed = share * tokens * b.experts_per_token;
      if (routed == 0) continue;
      const auto flops = matrix_flops(weights, routed);
      const auto activation = routed * activation_bytes_per_routed_token(b);
      all.pass_s += kernel_s(on, flops, weight_count * fp16_bytes + 2 * activation);
      all.weight_s += kernel_s(on, flops, activation + weight_count * gradient_traffic_bytes);
      all.activation_bytes += activation;
    }
    most.pass_s = std::max(most.pass_s, all.pass_s);
    most.weight_s = std::max(most.weight_s, all.weight_s);
    most.activation_bytes = std::max(most.activation_bytes, all.activation_bytes);
  }
  return most;
}

double tokens_of(const model& m, const load& l) {
  return l.tokens > 0 ? l.tokens : double{1} * l.samples * m.sequence_tokens;
}

bool is_layer(part_kind part) {
  return part == part_kind::encoder_layer || part == part_kind::decoder_layer;
}

/// A matrix and its input; all-reduces are negligible.
work matrix_work(std::uint64_t parameters, double tokens, double width, std::uint32_t tp) {
  return {.matrix_flops = matrix_flops(parameters, tokens) / tp,
          .weight_count = static_cast<double>(parameters) / tp,
          .activation_bytes = tokens * width * fp16_bytes};
}

work work_of(const model& m, part_kind part, const load& l, std::uint32_t tp) {
  const auto tokens = tokens_of(m, l);
  const auto& text = m.text;
  switch (part) {
    case part_kind::encoder_layer: {
      const auto patches = double{1} * l.images * m.images->patches;
      return layer_work(m.images->layer, patches, patches * m.images->patches, tp);
    }
    case part_kind::projector: {
      const auto image_tokens = double{1} * l.images * m.images->tokens_per_image();
      return matrix_work(
          projector_parameters(m), image_tokens,
          double{1} * m.images->layer.hidden * m.images->patches_per_token + text.layer.hidden, tp);
    }
    case part_kind::embedding: return {};
    case part_kind::decoder_layer:
      return layer_work(text.layer, tokens,
                        l.tokens > 0 ? l.token_squares : tokens * m.sequence_tokens, tp);
    case part_kind::head:
      // The logits are kept for B in FP16, divided by tp.
      return matrix_work(std::uint64_t{text.vocabulary} * text.layer.hidden, tokens,
                         text.layer.hidden + double{1} * text.vocabulary / tp, tp);
  }
  RRFP_CHECK(false, "unknown part");
}

bool counts_all_parts(job::cut_kind kind) {
  return kind == job::cut_kind::automatic || kind == job::cut_kind::cost;
}

/// The positions of the parts that a cut counts, in order.
std::vector<std::uint32_t> divided_by(job::cut_kind kind, const std::vector<part_kind>& parts) {
  std::vector<std::uint32_t> at;
  for (std::uint32_t i = 0; i < parts.size(); ++i)
    if (counts_all_parts(kind) || is_layer(parts[i])) at.push_back(i);
  return at;
}

status check_cut(const model& m, const layout& l) {
  const auto text = [](std::size_t n) { return std::to_string(n); };
  const auto parts = divided_by(l.cut.kind, parts_of(m)).size();
  if (parts < l.stages)
    return error{"expected at most as many stages as " + m.name + " has " +
                 (counts_all_parts(l.cut.kind) ? "parts" : "layers") + ", " + text(parts) +
                 ", got " + text(l.stages)};
  if (l.cut.kind != job::cut_kind::given) return success();
  const auto& layers = l.cut.layers;
  RRFP_CHECK(layers.size() == l.stages, "every stage has a number of layers");
  const auto all = std::accumulate(layers.begin(), layers.end(), std::size_t{0});
  if (all == parts) return success();
  return error{"expected all " + text(parts) + " layers of " + m.name + ", got " + text(all)};
}

}  // namespace

part_cost& part_cost::operator+=(const part_cost& other) {
  forward_ms += other.forward_ms;
  backward_ms += other.backward_ms;
  weight_ms += other.weight_ms;
  activation_bytes += other.activation_bytes;
  return *this;
}

std::vector<part_kind> parts_of(const model& m) {
  std::vector<part_kind> parts;
  if (m.images) {
    parts.assign(m.images->layers, part_kind::encoder_layer);
    parts.push_back(part_kind::projector);
  }
  parts.push_back(part_kind::embedding);
  parts.insert(parts.end(), m.text.layers, part_kind::decoder_layer);
  parts.push_back(part_kind::head);
  return parts;
}

part_cost cost_of(const model& m, part_kind part, const load& l, std::uint32_t tp,
                  const machine& on, std::uint32_t layer) {
  const auto w = work_of(m, part, l, tp);
  // No work: no kernel reads the weights.
  if (w.matrix_flops == 0) return {};
  const auto weights = w.weight_count * fp16_bytes;
  const auto fixed = is_layer(part) ? on.layer_us * 1e-6 : 0;
  const auto reduces = is_layer(part) ? 2 * all_reduce_s(on.within(), w.reduced_bytes, tp) : 0;
  const auto pass_bytes = weights + 2 * w.activation_bytes;
  const auto forward = kernel_s(on, w.matrix_flops + w.attention_flops, pass_bytes);
  const auto backward = kernel_s(on, w.matrix_flops + 2 * w.attention_flops, pass_bytes);
  const auto weight =
      kernel_s(on, w.matrix_flops, w.activation_bytes + w.weight_count * gradient_traffic_bytes);
  expert_work routed;
  if (const auto& b = m.text.layer; part == part_kind::decoder_layer && b.experts != 0) {
    std::span<const double> shares{l.expert_shares};
    if (!shares.empty()) shares = shares.subspan(std::size_t{layer} * b.experts, b.experts);
    routed = work_of_experts(b, tokens_of(m, l), shares, tp, on);
  }
  return {.forward_ms = 1e3 * (fixed + forward + routed.pass_s + reduces),
          .backward_ms = 1e3 * (fixed + backward + routed.pass_s + reduces),
          .weight_ms = 1e3 * (fixed + weight + routed.weight_s),
          .activation_bytes = w.activation_bytes + routed.activation_bytes};
}

std::uint64_t parameters_of(const model& m, part_kind part) {
  const auto table = std::uint64_t{m.text.vocabulary} * m.text.layer.hidden;
  switch (part) {
    case part_kind::encoder_layer: return parameters(m.images->layer);
    case part_kind::projector: return projector_parameters(m);
    case part_kind::embedding: return table + std::uint64_t{m.text.positions} * m.text.layer.hidden;
    case part_kind::decoder_layer: return parameters(m.text.layer);
    case part_kind::head: return table;
  }
  RRFP_CHECK(false, "unknown part");
}

result<pipeline_cost> pipeline_cost::make(model m, const machine& on, layout l) {
  RRFP_CHECK(l.stages > 0 && l.tp > 0 && l.replicas > 0 && l.samples > 0,
             "a layout needs stages, ranks, replicas and samples");
  if (auto fits = check_cut(m, l); !fits) return fits.failure();
  RRFP_CHECK(m.text.layer.experts % l.tp == 0, "ranks have whole experts");
  return pipeline_cost{std::move(m), on, std::move(l)};
}

pipeline_cost::pipeline_cost(model m, const machine& on, layout l)
    : model_(std::move(m)), on_(on), layout_(std::move(l)), parts_(parts_of(model_)) {
  const load mean{layout_.samples, layout_.mean_images, layout_.mean_tokens,
                  layout_.mean_tokens * layout_.mean_tokens / layout_.samples};
  const auto divided = divided_by(layout_.cut.kind, parts_);
  std::vector<double> costs;
  for (const auto i : divided)
    costs.push_back(cost_of(model_, parts_[i], mean, layout_.tp, on_).all_ms());
  std::vector<std::uint32_t> first{0};
  switch (layout_.cut.kind) {
    case job::cut_kind::automatic:
    case job::cut_kind::cost: first = cut_evenly(costs, layout_.stages, layout_.speeds); break;
    case job::cut_kind::layers: first = cut_evenly(costs, layout_.stages); break;
    case job::cut_kind::given:
      for (const auto n : layout_.cut.layers) first.push_back(first.back() + n);
      break;
  }
  cuts_.push_back(0);
  for (std::uint32_t s = 1; s < layout_.stages; ++s) cuts_.push_back(divided[first[s]]);
  cuts_.push_back(static_cast<std::uint32_t>(parts_.size()));
}

part_cost pipeline_cost::stage(stage_id s, const load& l) const {
  RRFP_CHECK(s.value() < layout_.stages, "the stage must belong to the pipeline");
  // All layers of a kind cost the same, unless they have experts.
  std::optional<part_cost> of_kind[part_kinds];
  const auto decoder = static_cast<std::uint32_t>(parts_.size()) - 1 - model_.text.layers;
  part_cost all;
  for (auto i = cuts_[s.value()]; i < cuts_[s.value() + 1]; ++i) {
    auto& known = of_kind[static_cast<int>(parts_[i])];
    const bool is_routed = parts_[i] == part_kind::decoder_layer && !l.expert_shares.empty();
    if (!known || is_routed)
      known = cost_of(model_, parts_[i], l, layout_.tp, on_, is_routed ? i - decoder : 0);
    all += *known;
  }
  return all;
}

double pipeline_cost::link_s(stage_id lower, double bytes) const {
  const auto ranks = layout_.tp * layout_.replicas;
  const auto node_of = [&](std::uint32_t stage) { return stage * ranks / on_.group; };
  if (node_of(lower.value()) == node_of(lower.value() + 1)) return transfer_s(on_.within(), bytes);
  return transfer_s(on_.between(), bytes, std::min(ranks, on_.group));
}

double pipeline_cost::message_bytes(stage_id lower, const load& l) const {
  RRFP_CHECK(lower.value() + 1 < layout_.stages, "the stage must have a next stage");
  const auto last = parts_[cuts_[lower.value() + 1] - 1];
  // Between encoder layers only patches are sent; the text joins after the projector.
  if (last == part_kind::encoder_layer)
    return double{1} * l.images * model_.images->patches * model_.images->layer.hidden * fp16_bytes;
  if (last == part_kind::projector)
    return double{1} * l.images * model_.images->tokens_per_image() * model_.text.layer.hidden *
           fp16_bytes;
  return tokens_of(model_, l) * model_.text.layer.hidden * fp16_bytes;
}

double pipeline_cost::message_ms(stage_id lower, const load& l) const {
  return 1e3 * link_s(lower, message_bytes(lower, l));
}

double pipeline_cost::empty_message_ms(stage_id lower) const { return 1e3 * link_s(lower, 0); }

double pipeline_cost::static_bytes(stage_id s) const {
  std::uint64_t count = 0;
  for (auto i = cuts_[s.value()]; i < cuts_[s.value() + 1]; ++i)
    count += parameters_of(model_, parts_[i]);
  return static_cast<double>(count) / layout_.tp * state_bytes;
}

double pipeline_cost::gradient_exchange_ms() const {
  double slowest = 0;
  const auto inside = layout_.tp * layout_.replicas <= on_.group;
  for (std::uint32_t s = 0; s < layout_.stages; ++s) {
    const auto bytes = static_bytes(stage_id{s}) / state_bytes * gradient_bytes;
    slowest = std::max(slowest, all_reduce_s(inside ? on_.within() : on_.between(), bytes,
                                             layout_.replicas, inside ? 1 : layout_.tp));
  }
  return 1e3 * slowest;
}

result<std::shared_ptr<const pipeline_cost>> workload_of(const job::job& j) {
  const auto& o = options_of(j);
  using made = std::shared_ptr<const pipeline_cost>;
  if (o.cost.preset.empty()) return made{};
  auto model = preset(o.cost.preset);
  RRFP_CHECK(model, "a checked job has a known preset");
  if (model->text.positions == 0 && o.cost.sequence_tokens != 0)
    model->sequence_tokens = o.cost.sequence_tokens;
  layout l{.stages = j.pipeline.stages,
           .tp = j.pipeline.tp,
           .replicas = j.pipeline.replicas,
           .samples = o.cost.samples,
           .mean_images = static_cast<std::uint32_t>(std::lround(o.images.mean * o.cost.samples)),
           .cut = j.pipeline.cuts};
  if (o.texts.spread != text_spread::padded) {
    l.mean_tokens = mean_text(o.texts) * o.cost.samples;
    if (model->images)
      l.mean_tokens += double{1} * l.mean_images * model->images->tokens_per_image();
  }
  for (std::uint32_t s = 0; s < l.stages; ++s) l.speeds.push_back(job::speed_of(j, stage_id{s}));
  auto cost = pipeline_cost::make(std::move(*model), o.machine, std::move(l));
  if (!cost) return cost.failure();
  return made{std::make_shared<const pipeline_cost>(std::move(*cost))};
}

}  // namespace rrfp::study
