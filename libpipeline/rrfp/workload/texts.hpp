/// The number of text tokens in a sample, which makes some microbatches more expensive than others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::workload {

/// padded: every sample has the tokens of the preset, whatever its text. uniform: 1 to 2 `mean` -
/// 1, all equally likely. lognormal: with the mean `mean` and the deviation `sigma` of the
/// logarithm. histogram: as often as `bins` says. All are cut at `most`, and at least 1.
enum class text_spread : std::uint8_t { padded, uniform, lognormal, histogram };

std::string_view name(text_spread s);

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
  double sigma = 1;
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

/// The mean of draw_text(), except that a uniform or log-normal length is not cut at `most`.
/// Requires a spread other than `padded`, like draw_text().
double mean_text(const text_options& options);
/// Tokens of the text of one sample.
std::uint32_t draw_text(const text_options& options, weather::keyed_random& random);

}  // namespace rrfp::workload
