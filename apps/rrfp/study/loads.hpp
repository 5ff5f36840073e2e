/// The load of each microbatch of a run: images, text and experts, as drawn from their
/// distributions.
#pragma once

#include <rrfp/study/spreads.hpp>
#include <rrfp/workload/model.hpp>

namespace rrfp::study {

using workload::load;

/// Plain data; const use is thread-safe.
struct load_source {
  workload::model model;
  std::uint32_t samples = 1;  ///< of a microbatch
  image_counts images;
  text_options texts;
  expert_options experts;
  std::uint64_t seed = 0;

  /// A pure function of its arguments. `microbatch`: as in images_of(). If the lengths of texts
  /// vary, a sample has the tokens of its text and of its images.
  load of(step_id step, std::uint64_t microbatch) const;
  /// Whether the tensors between stages differ in shape from one microbatch to the next.
  bool shapes_vary() const { return model.images || texts.spread != text_spread::padded; }
};

}  // namespace rrfp::study
