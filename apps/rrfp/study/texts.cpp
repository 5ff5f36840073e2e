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

std::uint32_t draw_text(const text_options& options, weather::keyed_random& random) {
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

}  // namespace rrfp::study
