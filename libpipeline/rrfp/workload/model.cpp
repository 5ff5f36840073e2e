#include <rrfp/workload/model.hpp>

#include <algorithm>

namespace rrfp::workload {

namespace {

std::uint64_t query_width(const block& b) { return std::uint64_t{b.heads} * b.head_dim; }
std::uint64_t key_width(const block& b) { return std::uint64_t{b.kv_heads} * b.head_dim; }
/// The width of the inner activations of a feed-forward part.
double inner_width(const block& b) { return (b.gated ? 3.0 : 2.0) * b.feed_forward; }

/// Attention, and the router of a mixture.
std::uint64_t other_parameters(const block& b) {
  return b.hidden * (2 * query_width(b) + 2 * key_width(b) + b.experts);
}

}  // namespace

std::uint64_t feed_forward_parameters(const block& b) {
  const auto matrices = b.gated ? 3U : 2U;
  return std::uint64_t{matrices} * b.hidden * b.feed_forward;
}

std::uint64_t parameters(const block& b) {
  return other_parameters(b) + std::max(b.experts, 1U) * feed_forward_parameters(b);
}

std::uint64_t active_parameters(const block& b) {
  return other_parameters(b) +
         (b.experts == 0 ? 1 : b.experts_per_token) * feed_forward_parameters(b);
}

std::uint64_t parameters(const decoder& d) {
  const auto table = std::uint64_t{d.vocabulary} * d.layer.hidden;
  return d.layers * parameters(d.layer) + (d.tied_head ? 1 : 2) * table +
         std::uint64_t{d.positions} * d.layer.hidden;
}

std::uint64_t parameters(const encoder& e) { return e.layers * parameters(e.layer); }

std::uint64_t projector_parameters(const model& m) {
  if (!m.images) return 0;
  const auto in = std::uint64_t{m.images->layer.hidden} * m.images->patches_per_token;
  const std::uint64_t out = m.text.layer.hidden;
  return in * out + out * out;
}

double matrix_flops(std::uint64_t parameters, double tokens) {
  return 2 * static_cast<double>(parameters) * tokens;
}

double attention_flops_of_squares(const block& b, double length_squares) {
  const auto all = 4 * length_squares * static_cast<double>(query_width(b));
  return b.causal ? all / 2 : all;
}

double activation_bytes_per_token(const block& b, std::uint32_t tp) {
  const double hidden = b.hidden;
  const auto attention = static_cast<double>(2 * query_width(b) + 2 * key_width(b));
  const auto feed_forward = b.experts == 0 ? inner_width(b) : 0;
  return fp16_bytes * (4 * hidden + (attention + feed_forward) / tp);
}

double activation_bytes_per_routed_token(const block& b) {
  return fp16_bytes * (b.hidden + inner_width(b));
}

}  // namespace rrfp::workload
