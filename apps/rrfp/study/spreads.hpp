/// What makes some microbatches of a step more expensive than others: the number of text tokens and
/// of images in a sample, and the share of the tokens that each expert of a mixture-of-experts
/// layer gets.
///
/// dirichlet: the shares of the experts are drawn from a symmetric Dirichlet distribution for each
/// microbatch and layer, independently: Gamma(concentration) variables divided by their sum
/// (Marsaglia and Tsang 2000). A router that balances its load well has a high concentration. No
/// measurement stands behind the default: it is assumed, in the range of routers with a balancing
/// loss. With it the busiest of 8 experts gets 1.5 times the mean, and of 128 experts 2.0 times (in
/// the measure of arXiv 2408.15664, MaxVio 0.5 and 1.0). Popularity that stays over a step, and the
/// noise of few tokens, are left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/workload/model.hpp>

namespace rrfp::simulate {

class keyed_random;

}  // namespace rrfp::simulate

namespace rrfp::study {

/// padded: every sample has the tokens of the preset, whatever its text. uniform: 1 to 2 `mean` -
/// 1, all equally likely. histogram: as often as `bins` says. All are cut at `most`, and at
/// least 1.
enum class text_spread : std::uint8_t { padded, uniform, histogram };
inline constexpr std::string_view text_spreads[] = {"padded", "uniform", "histogram"};
inline std::string_view name(text_spread s) { return text_spreads[static_cast<std::size_t>(s)]; }

/// One length of a histogram.
struct text_bin {
  std::uint32_t tokens = 0;
  /// Number of texts with at most so many tokens.
  std::uint64_t up_to = 0;
};

struct text_options {
  text_spread spread = text_spread::padded;
  /// Mean before the cut at `most`.
  double mean = 512;
  std::uint32_t most = 4096;
  /// File of the bins; empty: none.
  std::string histogram = {};
  /// By tokens, increasing; read_histogram() makes them.
  std::vector<text_bin> bins = {};
};

inline constexpr std::uint32_t text_tokens_max = 1U << 20;

/// Reads a CSV file with the header "tokens,count" and one row for each length. The error names the
/// file, and the line that is malformed.
result<std::vector<text_bin>> read_histogram(const std::string& path);

/// The mean of draw_text(), except that a uniform length is not cut at `most`.
/// Requires a spread other than `padded`, like draw_text().
double mean_text(const text_options& options);
/// Tokens of the text of one sample.
std::uint32_t draw_text(const text_options& options, simulate::keyed_random& random);

/// fixed: `mean`, rounded. uniform: 0 to 2 `mean`, rounded. geometric: starts at 0, and P(n) falls
/// by a constant factor. All are cut at `most`.
enum class image_spread : std::uint8_t { fixed, uniform, geometric };
inline constexpr std::string_view image_spreads[] = {"fixed", "uniform", "geometric"};
inline std::string_view name(image_spread s) { return image_spreads[static_cast<std::size_t>(s)]; }

/// The default is an assumption for every workload, because nothing is known about the real
/// distribution: any number of images that fits into a sample of 1024 tokens at 256 tokens per
/// image, all equally likely.
struct image_counts {
  image_spread spread = image_spread::uniform;
  /// Mean before the cut at `most`.
  double mean = 2;
  std::uint32_t most = 4;
};

/// Maximum number of images in a sample.
inline constexpr std::uint32_t images_max = 64;

/// Number of images in each sample of a microbatch. A pure function of its arguments.
/// `microbatch` is numbered across replicas: replica r has r * m to r * m + m - 1.
std::vector<std::uint32_t> images_of(const image_counts& counts, std::uint64_t seed, step_id step,
                                     std::uint64_t microbatch, std::uint32_t samples);

enum class expert_spread : std::uint8_t { even, dirichlet };
inline constexpr std::string_view expert_spreads[] = {"even", "dirichlet"};
inline std::string_view name(expert_spread s) {
  return expert_spreads[static_cast<std::size_t>(s)];
}

struct expert_options {
  expert_spread spread = expert_spread::dirichlet;
  double concentration = 10;
};

/// The share of the routed tokens that each of `experts` gets; the sum is 1. A pure function of its
/// arguments. `microbatch`: as in images_of().
std::vector<double> shares_of_experts(const expert_options& options, std::uint64_t seed,
                                      step_id step, std::uint64_t microbatch, std::uint32_t layer,
                                      std::uint32_t experts);

using workload::load;

/// The load of each microbatch of a run, as drawn from these distributions. Plain data; const use
/// is thread-safe.
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
