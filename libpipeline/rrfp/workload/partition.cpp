#include <rrfp/workload/partition.hpp>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::workload {

namespace {

/// Above so many samples * parts, differencing takes longer than it gains: with many samples in a
/// part, longest_first() is as even.
constexpr std::uint64_t differencing_max = std::uint64_t{1} << 22;
/// A division whose largest part is so close to the mean is not improved.
constexpr double close_enough = 1.002;
constexpr std::uint32_t exchanges_per_part = 8;
/// Pairs of samples that exchange() looks at, at most, for the same reason as differencing_max.
constexpr std::uint64_t pairs_max = std::uint64_t{1} << 24;
/// Two parts with so few samples together are divided anew in all ways, so many ways in all.
constexpr std::size_t divided_anew_max = 8;
constexpr std::uint64_t ways_max = std::uint64_t{1} << 17;

/// The indices from the largest value to the smallest.
template <class Value>
std::vector<std::uint32_t> descending(std::span<const sample_work> samples, Value value) {
  std::vector<std::uint32_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::uint32_t i) { return value(samples[i]); });
  return order;
}

void sort_indices(sample_parts& parts) {
  for (auto& part : parts) std::ranges::sort(part);
}

/// The work or the tokens of each part.
template <class Value>
std::vector<Value> sums_of(Value sample_work::*what, std::span<const sample_work> samples,
                           const sample_parts& parts) {
  std::vector<Value> sums;
  for (const auto& part : parts) {
    sums.push_back(0);
    for (const auto i : part) sums.back() += samples[i].*what;
  }
  return sums;
}

bool keeps(const sample_parts& parts, std::span<const sample_work> samples,
           const part_limits& limits) {
  const auto tokens = sums_of(&sample_work::tokens, samples, parts);
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (tokens[p] > limits.tokens_max || parts[p].size() < limits.samples_min) return false;
  return true;
}

double largest(std::span<const sample_work> samples, const sample_parts& parts) {
  return std::ranges::max(sums_of(&sample_work::work, samples, parts));
}

/// One part of a partial division: a list of samples that is linked through `next`.
struct partial_part {
  double work = 0;
  std::uint32_t samples = 0;
  std::uint32_t first = 0;
  std::uint32_t last = 0;

  /// From the largest to the smallest. A part without work may hold samples, too.
  bool operator<(const partial_part& other) const {
    if (work != other.work) return work > other.work;
    if (samples != other.samples) return samples > other.samples;
    return first < other.first;
  }
};

/// The parts that hold samples, from the largest to the smallest. The other parts are empty.
struct partial_division {
  std::vector<partial_part> parts;
  double difference = 0;  ///< of the largest and the smallest part
  std::uint32_t number = 0;

  /// Of two that differ as much, the one that was made first goes first.
  bool operator<(const partial_division& other) const {
    if (difference != other.difference) return difference < other.difference;
    return number > other.number;
  }
};

/// What an exchange of two parts changes: sample `out` of the larger part for sample `in` of the
/// smaller one.
struct exchanged {
  static constexpr std::uint32_t none = ~0U;
  double larger = 0;  ///< of the two parts afterwards
  std::size_t other = 0;
  std::uint32_t out = none;
  std::uint32_t in = none;  ///< none: `out` moves
};

/// A division of the samples of two parts.
struct divided_anew {
  double larger = 0;  ///< of the two parts
  std::size_t other = 0;
  std::vector<std::uint32_t> samples = {};  ///< of both
  std::uint32_t stay = 0;                   ///< bit i: samples[i] is in the first part
};

/// Tries all divisions of the samples of parts `from` and `to`; replaces a worse `best`.
void divide_anew(std::span<const sample_work> samples, const sample_parts& parts,
                 const part_limits& limits, std::size_t from, std::size_t to, divided_anew& best) {
  auto both = parts[from];
  both.insert(both.end(), parts[to].begin(), parts[to].end());
  const auto all = (std::size_t{1} << both.size()) - 1;
  std::vector<sample_work> sums(all + 1);  // by the set of samples
  for (std::size_t set = 1; set <= all; ++set) {
    const auto& rest = sums[set & (set - 1)];
    const auto& first = samples[both[static_cast<std::size_t>(std::countr_zero(set))]];
    sums[set] = {rest.tokens + first.tokens, rest.work + first.work};
  }
  for (std::size_t set = 1; set < all; ++set) {
    const auto &a = sums[set], &b = sums[all - set];
    const auto count = static_cast<std::size_t>(std::popcount(set));
    if (std::max(a.work, b.work) < best.larger && a.tokens <= limits.tokens_max &&
        b.tokens <= limits.tokens_max && count >= limits.samples_min &&
        both.size() - count >= limits.samples_min)
      best = {std::max(a.work, b.work), to, both, static_cast<std::uint32_t>(set)};
  }
}

/// Opens a part for each sample that fits into no other.
sample_parts fit_decreasing(std::span<const sample_work> samples, std::uint64_t tokens_max) {
  sample_parts made;
  std::set<std::pair<std::uint64_t, std::uint32_t>> room;  // tokens, part
  for (const auto i : descending(samples, [](const sample_work& s) { return s.tokens; })) {
    auto to = room.lower_bound({samples[i].tokens, 0});
    if (to == room.end()) {
      RRFP_CHECK(samples[i].tokens <= tokens_max, "each sample fits");
      to = room.insert({tokens_max, static_cast<std::uint32_t>(made.size())}).first;
      made.emplace_back();
    }
    const auto [tokens, p] = *to;
    room.erase(to);
    room.insert({tokens - samples[i].tokens, p});
    made[p].push_back(i);
  }
  return made;
}

}  // namespace

std::optional<sample_parts> longest_first(std::span<const sample_work> samples, std::uint32_t parts,
                                          const part_limits& limits) {
  RRFP_CHECK(parts > 0, "there is a part");
  sample_parts made(parts);
  std::vector<double> work(parts);
  std::vector<std::uint64_t> tokens(parts);
  const auto is_less = [&](std::uint32_t a, std::uint32_t b) {
    return std::tuple(work[a], made[a].size(), a) < std::tuple(work[b], made[b].size(), b);
  };
  std::set<std::uint32_t, decltype(is_less)> by_work{is_less};
  for (std::uint32_t p = 0; p < parts; ++p) by_work.insert(p);
  auto missing = std::uint64_t{parts} * limits.samples_min;
  if (samples.size() < missing) return std::nullopt;
  auto left = samples.size();
  for (const auto i : descending(samples, [](const sample_work& s) { return s.work; })) {
    // The last samples, which are the smallest, fill the parts that have too few.
    const bool must_fill = left-- == missing;
    const auto to = std::ranges::find_if(by_work, [&](std::uint32_t p) {
      return tokens[p] <= limits.tokens_max && samples[i].tokens <= limits.tokens_max - tokens[p] &&
             (!must_fill || made[p].size() < limits.samples_min);
    });
    if (to == by_work.end()) return std::nullopt;
    const auto p = *to;
    by_work.erase(to);
    if (made[p].size() < limits.samples_min) --missing;
    made[p].push_back(i);
    work[p] += samples[i].work;
    tokens[p] += samples[i].tokens;
    by_work.insert(p);
  }
  sort_indices(made);
  return made;
}

sample_parts largest_differencing(std::span<const sample_work> samples, std::uint32_t parts) {
  RRFP_CHECK(parts > 0, "there is a part");
  std::vector<std::uint32_t> next(samples.size());
  std::vector<partial_division> divisions;
  divisions.reserve(samples.size());
  for (std::uint32_t i = 0; i < samples.size(); ++i)
    divisions.push_back({{{samples[i].work, 1, i, i}}, parts > 1 ? samples[i].work : 0, i});
  std::make_heap(divisions.begin(), divisions.end());
  const auto pop = [&] {
    std::pop_heap(divisions.begin(), divisions.end());
    auto top = std::move(divisions.back());
    divisions.pop_back();
    return top;
  };
  for (auto number = static_cast<std::uint32_t>(samples.size()); divisions.size() > 1; ++number) {
    auto a = pop();
    const auto b = pop();
    // The largest of a meets the smallest of b: those of both that are empty first.
    const auto held = b.parts.size();
    a.parts.resize(std::min<std::size_t>(parts, a.parts.size() + held));
    for (std::size_t j = 0; j < held; ++j) {
      auto& to = a.parts[a.parts.size() - 1 - j];
      const auto& from = b.parts[j];
      if (to.samples == 0) {
        to = from;
        continue;
      }
      next[to.last] = from.first;
      to.last = from.last;
      to.work += from.work;
      to.samples += from.samples;
    }
    std::sort(a.parts.begin(), a.parts.end());
    a.difference = a.parts.front().work - (a.parts.size() < parts ? 0 : a.parts.back().work);
    a.number = number;
    divisions.push_back(std::move(a));
    std::push_heap(divisions.begin(), divisions.end());
  }
  sample_parts made(parts);
  if (divisions.empty()) return made;
  const auto& whole = divisions.front().parts;
  for (std::size_t p = 0; p < whole.size(); ++p) {
    auto i = whole[p].first;
    for (std::uint32_t n = 0; n < whole[p].samples; ++n, i = next[i]) made[p].push_back(i);
  }
  sort_indices(made);
  return made;
}

std::optional<sample_parts> best_fit(std::span<const sample_work> samples, std::uint32_t parts,
                                     std::uint64_t tokens_max) {
  RRFP_CHECK(parts > 0, "there is a part");
  if (samples.size() < parts) return std::nullopt;
  auto made = fit_decreasing(samples, tokens_max);
  if (made.size() > parts) return std::nullopt;
  made.resize(parts);
  // An empty part gets the smallest sample of a part with several.
  for (auto& empty : made) {
    if (!empty.empty()) continue;
    const auto from = std::ranges::max_element(made, {}, [](const auto& p) { return p.size(); });
    empty.push_back(from->back());
    from->pop_back();
  }
  sort_indices(made);
  return made;
}

std::uint32_t parts_needed(std::span<const sample_work> samples, std::uint64_t tokens_max) {
  return static_cast<std::uint32_t>(fit_decreasing(samples, tokens_max).size());
}

void exchange(std::span<const sample_work> samples, sample_parts& parts,
              const part_limits& limits) {
  auto work = sums_of(&sample_work::work, samples, parts);
  auto tokens = sums_of(&sample_work::tokens, samples, parts);
  const auto mean =
      std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(parts.size());
  std::uint64_t pairs = 0, ways = 0;
  const auto try_all_ways = [&](std::size_t from) {
    divided_anew best{.larger = work[from]};
    for (std::size_t to = 0; to < parts.size() && parts[from].size() > 1; ++to) {
      const auto count = parts[from].size() + parts[to].size();
      if (to == from || work[to] >= mean || count > divided_anew_max || ways >= ways_max) continue;
      ways += std::uint64_t{1} << count;
      divide_anew(samples, parts, limits, from, to, best);
    }
    if (best.samples.empty()) return false;
    for (const auto p : {from, best.other}) {
      parts[p].clear();
      work[p] = 0;
      tokens[p] = 0;
    }
    for (std::size_t i = 0; i < best.samples.size(); ++i) {
      const auto p = (best.stay >> i & 1) != 0 ? from : best.other;
      const auto sample = best.samples[i];
      parts[p].push_back(sample);
      work[p] += samples[sample].work;
      tokens[p] += samples[sample].tokens;
    }
    return true;
  };
  for (std::size_t n = 0; n < exchanges_per_part * parts.size() && pairs < pairs_max; ++n) {
    const auto from = static_cast<std::size_t>(std::ranges::max_element(work) - work.begin());
    if (work[from] <= close_enough * mean) break;
    exchanged best{.larger = work[from]};
    const auto consider = [&](std::size_t to, std::uint32_t out, std::uint32_t in) {
      const auto& leaves = samples[out];
      const auto comes = in == exchanged::none ? sample_work{} : samples[in];
      const auto moved = leaves.work - comes.work;
      const auto larger = std::max(work[from] - moved, work[to] + moved);
      if (larger >= best.larger || tokens[to] - comes.tokens + leaves.tokens > limits.tokens_max ||
          tokens[from] - leaves.tokens + comes.tokens > limits.tokens_max)
        return;
      best = {larger, to, out, in};
    };
    for (std::size_t to = 0; to < parts.size(); ++to) {
      if (to == from || work[to] >= mean) continue;
      for (const auto out : parts[from]) {
        if (parts[from].size() > limits.samples_min) consider(to, out, exchanged::none);
        for (const auto in : parts[to]) consider(to, out, in);
      }
      pairs += parts[from].size() * parts[to].size();
    }
    if (best.out == exchanged::none) {
      if (!try_all_ways(from)) break;
      continue;
    }
    const auto move = [&](std::uint32_t i, std::size_t a, std::size_t b) {
      std::erase(parts[a], i);
      parts[b].push_back(i);
      work[a] -= samples[i].work;
      work[b] += samples[i].work;
      tokens[a] -= samples[i].tokens;
      tokens[b] += samples[i].tokens;
    };
    move(best.out, from, best.other);
    if (best.in != exchanged::none) move(best.in, best.other, from);
  }
  sort_indices(parts);
}

std::optional<sample_parts> divide(std::span<const sample_work> samples, std::uint32_t parts,
                                   const part_limits& limits) {
  std::optional<sample_parts> best;
  const auto is_even = [&](const sample_parts& made) {
    return imbalance(sums_of(&sample_work::work, samples, made)) <= close_enough;
  };
  const auto is_close = [&](std::optional<sample_parts> made) {
    if (!made || !keeps(*made, samples, limits)) return false;
    if (!is_even(*made)) exchange(samples, *made, limits);
    if (!best || largest(samples, *made) < largest(samples, *best)) best = std::move(made);
    return is_even(*best);
  };
  if (is_close(longest_first(samples, parts, limits))) return best;
  if (samples.size() * std::uint64_t{parts} <= differencing_max &&
      is_close(largest_differencing(samples, parts)))
    return best;
  if (limits.samples_min <= 1) is_close(best_fit(samples, parts, limits.tokens_max));
  return best;
}

double imbalance(std::span<const double> work_of_parts) {
  const auto all = std::accumulate(work_of_parts.begin(), work_of_parts.end(), 0.0);
  if (all <= 0) return 1;
  return std::ranges::max(work_of_parts) * static_cast<double>(work_of_parts.size()) / all;
}

std::vector<std::uint32_t> cut_evenly(const std::vector<double>& costs, std::uint32_t stages,
                                      const std::vector<double>& speeds) {
  const auto n = static_cast<std::uint32_t>(costs.size());
  RRFP_CHECK(stages >= 1 && n >= stages, "every stage needs a part");
  RRFP_CHECK(speeds.empty() || speeds.size() == stages, "every stage has a speed");
  const auto speed_of = [&](std::uint32_t stage) { return speeds.empty() ? 1 : speeds[stage]; };
  std::vector<double> sum(n + 1);
  for (std::uint32_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + costs[i];
  // best[k][i]: the cost of the most expensive of k stages that hold the first i parts; from[k][i]:
  // the first part of the last of these stages.
  constexpr auto never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, never));
  std::vector<std::vector<std::uint32_t>> from(stages + 1, std::vector<std::uint32_t>(n + 1));
  best[0][0] = 0;
  for (std::uint32_t k = 1; k <= stages; ++k)
    for (auto i = k; i <= n - (stages - k); ++i)
      for (auto j = k - 1; j < i; ++j) {
        const auto largest = std::max(best[k - 1][j], (sum[i] - sum[j]) / speed_of(k - 1));
        if (largest >= best[k][i]) continue;
        best[k][i] = largest;
        from[k][i] = j;
      }
  std::vector<std::uint32_t> cuts(stages + 1, n);
  for (auto k = stages; k > 0; --k) cuts[k - 1] = from[k][cuts[k]];
  return cuts;
}

}  // namespace rrfp::workload
