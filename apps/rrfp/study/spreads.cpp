#include <rrfp/study/spreads.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include <rrfp/base/check.hpp>
#include <rrfp/base/parse_number.hpp>
#include <rrfp/base/printable.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::study {

namespace {

constexpr std::string_view header = "tokens,count";
constexpr std::uint64_t count_max = 1'000'000'000'000;
/// The start of a line is enough to recognize it.
constexpr std::size_t shown_max = 80;

/// Adds a row; the error says what it expected.
status add_row(std::string_view line, std::vector<text_bin>& bins) {
  const auto comma = line.find(',');
  const auto tokens = parse_number<std::uint32_t>(line.substr(0, comma));
  const auto count = comma == std::string_view::npos
                         ? std::nullopt
                         : parse_number<std::uint64_t>(line.substr(comma + 1));
  if (!tokens || !count || *tokens == 0 || *tokens > text_tokens_max || *count > count_max)
    return error{"tokens from 1 to " + std::to_string(text_tokens_max) + " and a count up to " +
                 std::to_string(count_max)};
  const auto before = bins.empty() ? text_bin{} : bins.back();
  if (*tokens <= before.tokens)
    return error{"more tokens than in the row before, " + std::to_string(before.tokens)};
  bins.push_back({*tokens, before.up_to + *count});
  return success();
}

// Keep these draws independent of each other and of the jitter's, whose keys have a salt in the
// same position.
constexpr std::uint64_t images_salt = 0x696d61676573, experts_salt = 0x65787065727473,
                        texts_salt = 0x7465787473;

double draw(const image_counts& counts, double uniform) {
  switch (counts.spread) {
    case image_spread::fixed: return std::round(counts.mean);
    case image_spread::uniform: return std::floor(uniform * (2 * std::round(counts.mean) + 1));
    case image_spread::geometric:
      // P(n) = (1 - q) q^n has the mean q / (1 - q).
      if (counts.mean == 0) return 0;
      return std::floor(std::log1p(-uniform) / std::log(counts.mean / (1 + counts.mean)));
  }
  RRFP_CHECK(false, "unknown image_spread");
}

/// Marsaglia and Tsang 2000; for a shape below 1 with their boost.
double gamma(simulate::keyed_random& random, double shape) {
  if (shape < 1) {
    const auto boost = std::pow(1 - random.uniform(), 1 / shape);
    return boost * gamma(random, shape + 1);
  }
  const auto d = shape - 1.0 / 3;
  const auto c = 1 / std::sqrt(9 * d);
  for (;;) {
    const auto x = random.normal();
    const auto v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log1p(-random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v;
  }
}

}  // namespace

result<std::vector<text_bin>> read_histogram(const std::string& path) {
  errno = 0;
  std::ifstream file{path};
  std::vector<text_bin> bins;
  std::string line;
  std::uint32_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    auto fits = success();
    if (number > 1)
      fits = line.empty() ? success() : add_row(line, bins);
    else if (line != header)
      fits = error{"the header " + std::string{header}};
    if (!fits)
      return error{path + ":" + std::to_string(number) + ": expected " + fits.message() +
                   ", got \"" + printable(line.substr(0, shown_max)) + "\""};
  }
  if (number == 0 && errno != 0) return error{path + ": cannot be read: " + std::strerror(errno)};
  if (file.bad()) return error{path + ": cannot be read"};
  if (bins.empty() || bins.back().up_to == 0)
    return error{path + ": expected the header " + std::string{header} +
                 " and a row with a count above 0, got none"};
  return bins;
}

double mean_text(const text_options& options) {
  const auto most = double{1} * options.most;
  if (options.spread != text_spread::histogram) return std::min(options.mean, most);
  double sum = 0;
  std::uint64_t before = 0;
  for (const auto& b : options.bins) {
    sum += static_cast<double>(b.up_to - before) * std::min(double{1} * b.tokens, most);
    before = b.up_to;
  }
  return sum / static_cast<double>(before);
}

std::uint32_t draw_text(const text_options& options, simulate::keyed_random& random) {
  double tokens = 0;
  switch (options.spread) {
    case text_spread::padded: RRFP_CHECK(false, "padded samples have one length");
    case text_spread::uniform:
      tokens = 1 + std::floor(random.uniform() * (2 * std::round(options.mean) - 1));
      break;
    case text_spread::histogram: {
      const auto& bins = options.bins;
      const auto all = static_cast<double>(bins.back().up_to);
      const auto chosen = static_cast<std::uint64_t>(random.uniform() * all);
      tokens = std::ranges::upper_bound(bins, chosen, {}, &text_bin::up_to)->tokens;
      break;
    }
  }
  return static_cast<std::uint32_t>(std::clamp(tokens, 1.0, double{1} * options.most));
}

std::vector<std::uint32_t> images_of(const image_counts& counts, std::uint64_t seed, step_id step,
                                     std::uint64_t microbatch, std::uint32_t samples) {
  simulate::keyed_random random{seed, images_salt, step.value(), microbatch};
  std::vector<std::uint32_t> all(samples);
  for (auto& images : all)
    images = static_cast<std::uint32_t>(
        std::min(draw(counts, random.uniform()), static_cast<double>(counts.most)));
  return all;
}

std::vector<double> shares_of_experts(const expert_options& options, std::uint64_t seed,
                                      step_id step, std::uint64_t microbatch, std::uint32_t layer,
                                      std::uint32_t experts) {
  RRFP_CHECK(experts > 0, "a mixture has experts");
  std::vector<double> shares(experts, 1.0 / experts);
  if (options.spread == expert_spread::even) return shares;
  simulate::keyed_random random{seed, experts_salt, step.value(), microbatch, layer};
  double sum = 0;
  for (auto& share : shares) sum += share = gamma(random, options.concentration);
  // With a tiny concentration every draw may underflow.
  if (sum == 0) sum = shares.front() = 1;
  for (auto& share : shares) share /= sum;
  return shares;
}

load load_source::of(step_id step, std::uint64_t microbatch) const {
  load l{.samples = samples};
  std::vector<std::uint32_t> counts(samples);
  if (model.images) counts = images_of(images, seed, step, microbatch, samples);
  for (const auto n : counts) l.images += n;
  if (texts.spread != text_spread::padded) {
    const auto tokens_per_image = model.images ? model.images->tokens_per_image() : 0;
    simulate::keyed_random random{seed, texts_salt, step.value(), microbatch};
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
