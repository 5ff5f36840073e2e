/// Divides work evenly: samples into parts of about equal work (multiway number partitioning, under
/// a limit of tokens a part), and the layers of a model into stages.
///
/// All functions are pure: equal input gives equal output on every machine. Ties are broken by the
/// index of the sample.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace rrfp::workload {

/// What a sample adds to its microbatch.
struct sample_work {
  std::uint64_t tokens = 0;
  double work = 0;  ///< in any unit, finite and not negative
};

/// The limits of each part.
struct part_limits {
  std::uint64_t tokens_max = std::numeric_limits<std::uint64_t>::max();
  std::uint32_t samples_min = 1;
};

/// By part: the indices of its samples, ascending.
using sample_parts = std::vector<std::vector<std::uint32_t>>;

/// Longest processing time first (Graham 1969, "Bounds on multiprocessing timing anomalies"): the
/// samples, from the most work to the least, each go to the part with the least work that has room
/// for their tokens. Nothing if a sample finds no room, or if there are too few samples. O(n log n)
/// while the parts have room.
std::optional<sample_parts> longest_first(std::span<const sample_work> samples, std::uint32_t parts,
                                          const part_limits& limits = {});

/// Largest differencing (Karmarkar and Karp 1982, "The differencing method of set partitioning"),
/// for any number of parts: two partial divisions whose parts differ most are joined, the largest
/// part of one with the smallest of the other, until one is left. It knows no limits; at most
/// samples - 1 joins of O(parts log parts).
sample_parts largest_differencing(std::span<const sample_work> samples, std::uint32_t parts);

/// Best fit decreasing (Johnson 1973, "Near-optimal bin packing algorithms"): the samples, from the
/// most tokens to the least, each go to the part with the least room that has room for them. It
/// needs few parts, and ignores the work. Nothing if a sample finds no room, or if there are fewer
/// samples than parts.
std::optional<sample_parts> best_fit(std::span<const sample_work> samples, std::uint32_t parts,
                                     std::uint64_t tokens_max);
/// The number of parts that best_fit() needs. No sample may have more than tokens_max tokens.
std::uint32_t parts_needed(std::span<const sample_work> samples, std::uint64_t tokens_max);

/// Exchanges samples of the part with the most work for others, or moves them, as long as that
/// lowers the most work of the two parts and keeps the limits: a local search, which ends after
/// `parts` * 8 exchanges. Where no exchange helps, two parts of few samples are divided anew.
void exchange(std::span<const sample_work> samples, sample_parts& parts, const part_limits& limits);

/// longest_first(); if its largest part is more than 0.2 % above the mean, the best of all methods,
/// each after exchanges. Nothing if none keeps the limits.
std::optional<sample_parts> divide(std::span<const sample_work> samples, std::uint32_t parts,
                                   const part_limits& limits);

/// The work of the largest part divided by the mean, at least 1; 1 if there is no work.
double imbalance(std::span<const double> work_of_parts);

/// Cuts a sequence of parts into stages such that the largest time of a stage is minimal; every
/// stage gets at least one part. The time of a stage is the sum of its parts divided by its speed
/// (empty: all 1). Returns the first part of each stage, followed by the number of parts: stages +
/// 1 increasing numbers. Requires `costs.size() >= stages`.
std::vector<std::uint32_t> cut_evenly(const std::vector<double>& costs, std::uint32_t stages,
                                      const std::vector<double>& speeds = {});

}  // namespace rrfp::workload
