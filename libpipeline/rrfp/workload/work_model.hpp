/// The work of one sample: per_token * tokens + per_token_square * tokens^2, and the same for each
/// of its images.
///
/// Attention gives the squares. It does not cross documents, nor images, so samples that share a
/// microbatch add no work to each other and the work of a microbatch is the sum over its samples.
#pragma once

#include <span>

#include <rrfp/base/result.hpp>
#include <rrfp/workload/model.hpp>

namespace rrfp::workload {

/// In FLOPs, seconds, or any other unit. The default counts tokens.
struct work_model {
  double per_token = 1;
  double per_token_square = 0;
  double per_patch = 0;
  double per_patch_square = 0;

  bool operator==(const work_model&) const = default;

  /// `image_patches`: the patches of each image of the sample, whose tokens are among `tokens`.
  double work_of(double tokens, std::span<const double> image_patches = {}) const;
};

/// The FLOPs of forward and backward, as model.hpp counts them: three times the matrices of a
/// forward, and three times its attention.
work_model training_flops(const model& m);

/// A measured microbatch or sample.
struct measured_work {
  double tokens = 0;
  double token_squares = 0;  ///< summed over its documents
  double patches = 0;
  double patch_squares = 0;  ///< summed over its images
  double seconds = 0;
};

struct fitted_work {
  work_model model;       ///< in seconds
  double constant_s = 0;  ///< of a measurement without tokens: launches, small kernels
};

/// Least squares with coefficients that are not negative: of all sets of coefficients that may be
/// above 0, the one with the smallest residual whose solution has no negative one (Lawson and
/// Hanson 1974, "Solving least squares problems", chapter 23, by enumeration: there are five). The
/// error names the measurement that is out of range.
result<fitted_work> fit(std::span<const measured_work> measured);

}  // namespace rrfp::workload
