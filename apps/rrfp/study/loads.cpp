#include <rrfp/study/loads.hpp>

#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::study {

namespace {

/// Keeps these draws independent of all others.
constexpr std::uint64_t texts_salt = 0x7465787473;

}  // namespace

load load_source::of(step_id step, std::uint64_t microbatch) const {
  load l{.samples = samples};
  std::vector<std::uint32_t> counts(samples);
  if (model.images) counts = images_of(images, seed, step, microbatch, samples);
  for (const auto n : counts) l.images += n;
  if (texts.spread != text_spread::padded) {
    const auto tokens_per_image = model.images ? model.images->tokens_per_image() : 0;
    weather::keyed_random random{seed, texts_salt, step.value(), microbatch};
    for (const auto n : counts) {
      const double tokens = double{1} * draw_text(texts, random) + double{1} * n * tokens_per_image;
      l.tokens += tokens;
      l.token_squares += tokens * tokens;
    }
  }
  const auto experts_count = model.text.layer.experts;
  if (experts.spread == expert_spread::even || experts_count == 0) return l;
  for (std::uint32_t i = 0; i < model.text.layers; ++i) {
    const auto shares = shares_of_experts(experts, seed, step, microbatch, i, experts_count);
    l.expert_shares.insert(l.expert_shares.end(), shares.begin(), shares.end());
  }
  return l;
}

}  // namespace rrfp::study
