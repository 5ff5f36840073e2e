#include <rrfp/job/closest.hpp>

#include <algorithm>
#include <vector>

namespace rrfp::job {

namespace {

/// Longer words are not compared, in bytes: the cost is quadratic.
constexpr std::size_t word_bytes_max = 64;

/// Optimal string alignment distance.
std::size_t distance(std::string_view a, std::string_view b) {
  const auto width = b.size() + 1;
  std::vector<std::size_t> d((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return d[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  return d.back();
}

}  // namespace

std::optional<std::string_view> closest(std::string_view word,
                                        std::span<const std::string_view> names) {
  if (word.size() > word_bytes_max) return std::nullopt;
  std::optional<std::string_view> best;
  auto least = (word.size() + 2) / 3 + 1;
  const auto length_off = [&](std::string_view name) {
    return std::max(word.size(), name.size()) - std::min(word.size(), name.size());
  };
  for (const auto name : names) {
    const auto d = distance(word, name);
    if (d < least || (best && d == least && length_off(name) < length_off(*best))) {
      least = d;
      best = name;
    }
  }
  return best;
}

std::string suggestion(std::string_view word, std::span<const std::string_view> names,
                       std::string_view otherwise) {
  if (const auto near = closest(word, names)) return ", did you mean " + std::string{*near} + "?";
  std::string text = "; " + std::string{otherwise};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  return text;
}

}  // namespace rrfp::job
