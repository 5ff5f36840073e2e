#include <rrfp/study/loads.hpp>

#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::study {

using namespace workload;

namespace {

/// Keeps these draws independent of all others.
constexpr std::uint64_t texts_salt = 0x7465787473;

}  // namespace

load_source::load_source(const model& m, std::uint32_t samples, const image_counts& images,
                         const text_options& texts, const expert_options& experts,
                         std::uint64_t seed)
    : samples_(samples),
      tokens_per_image_(m.images ? m.images->tokens_per_image() : 0),
      layers_(m.text.layers),
      number_of_experts_(m.text.layer.experts),
      images_(images),
      texts_(texts),
      experts_(experts),
      seed_(seed) {}

load load_source::of(step_id step, std::uint64_t microbatch) const {
  load l{.samples = samples_};
  std::vector<std::uint32_t> images(samples_);
  if (tokens_per_image_ != 0) images = images_of(images_, seed_, step, microbatch, samples_);
  for (const auto n : images) l.images += n;
  if (texts_.spread != text_spread::padded) {
    weather::keyed_random random{seed_, texts_salt, step.value(), microbatch};
    for (const auto n : images) {
      const double tokens =
          double{1} * draw_text(texts_, random) + double{1} * n * tokens_per_image_;
      l.tokens += tokens;
      l.token_squares += tokens * tokens;
    }
  }
  if (experts_.spread == expert_spread::even) return l;
  for (std::uint32_t i = 0; number_of_experts_ != 0 && i < layers_; ++i) {
    const auto shares = shares_of_experts(experts_, seed_, step, microbatch, i, number_of_experts_);
    l.expert_shares.insert(l.expert_shares.end(), shares.begin(), shares.end());
  }
  return l;
}

}  // namespace rrfp::study
