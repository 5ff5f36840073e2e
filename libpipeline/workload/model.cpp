#include <rrfp/workload/model.hpp>

namespace rrfp::workload {

namespace {

std::uint64_t query_width(const block& b) { return std::uint64_t{b.heads} * b.head_dim; }
std::uint64_t key_width(const block& b) { return std::uint64_t{b.kv_heads} * b.head_dim; }

}  // namespace

std::uint64_t parameters(const block& b) {
  const auto attention = b.hidden * (2 * query_width(b) + 2 * key_width(b));
  const auto matrices = b.gated ? 3U : 2U;
  return attention + std::uint64_t{matrices} * b.hidden * b.feed_forward;
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

std::uint64_t parameters(const model& m) {
  return (m.images ? parameters(*m.images) : 0) + projector_parameters(m) + parameters(m.text);
}

double matrix_flops(std::uint64_t parameters, double tokens) {
  return 2 * static_cast<double>(parameters) * tokens;
}

double attention_flops(const block& b, double length) {
  const auto all = 4 * length * length * static_cast<double>(query_width(b));
  return b.causal ? all / 2 : all;
}

double activation_bytes_per_token(const block& b, std::uint32_t tp) {
  const double hidden = b.hidden;
  const auto attention = static_cast<double>(2 * query_width(b) + 2 * key_width(b));
  const auto feed_forward = (b.gated ? 3.0 : 2.0) * b.feed_forward;
  return fp16_bytes * (4 * hidden + (attention + feed_forward) / tp);
}

}  // namespace rrfp::workload
