/// The load of each microbatch of a run: images, text and experts, as drawn from their
/// distributions.
#pragma once

#include <rrfp/study/spreads.hpp>
#include <rrfp/workload/model.hpp>

namespace rrfp::study {

using workload::load;
using workload::model;

/// A pure function of the step and the microbatch. Thread-safe.
class load_source {
 public:
  load_source(const model& m, std::uint32_t samples, const image_counts& images,
              const text_options& texts, const expert_options& experts, std::uint64_t seed);

  /// `microbatch`: as in images_of(). If the lengths of texts vary, a sample has the tokens of its
  /// text and of its images.
  load of(step_id step, std::uint64_t microbatch) const;
  /// Whether the tensors between stages differ in shape from one microbatch to the next.
  bool shapes_vary() const {
    return tokens_per_image_ != 0 || texts_.spread != text_spread::padded;
  }

 private:
  std::uint32_t samples_;
  std::uint32_t tokens_per_image_ = 0;  ///< 0: no images
  std::uint32_t layers_ = 0;            ///< with experts
  std::uint32_t number_of_experts_ = 0;
  image_counts images_;
  text_options texts_;
  expert_options experts_;
  std::uint64_t seed_;
};

}  // namespace rrfp::study
