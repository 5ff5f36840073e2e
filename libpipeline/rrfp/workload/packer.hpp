/// Packs samples of different lengths into the microbatches of steps, so that the microbatches of a
/// step have about equal work, and so have its replicas, under a limit of tokens a microbatch.
///
/// The samples of a step are divided among the replicas first, and those of a replica among its
/// microbatches. A sample with more work than a microbatch has on average, an *outlier*, would
/// leave the others waiting. With `delay` it waits in a queue until there are as many outliers as
/// microbatches, or until it has waited for `delay` steps; then all of them go into one step (the
/// outlier queue of WLB-LLM, Wang et al. 2025, arXiv 2503.17924, with one level and a bound).
///
/// Everything follows from the samples, the options and a small position, so a packer resumes
/// without a replay, and equal packers on several nodes give equal steps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/workload/partition.hpp>

namespace rrfp::workload {

/// Limits of what the packer takes.
inline constexpr std::uint64_t tokens_of_sample_max = std::uint64_t{1} << 32;
inline constexpr std::uint64_t microbatches_of_step_max = std::uint64_t{1} << 16;

/// By replica, then by microbatch: the indices of samples, ascending. Microbatches are ordered by
/// their first sample.
using packed_replicas = std::vector<sample_parts>;

/// Packs the samples of one step into `microbatches` for each of `replicas`; fewer if there are too
/// few samples for all, since no microbatch is empty. max_tokens = 0: no limit. Nothing if the
/// samples are not seen to fit, even by best_fit().
std::optional<packed_replicas> pack_step(std::span<const sample_work> samples,
                                         std::uint32_t replicas, std::uint32_t microbatches,
                                         std::uint64_t max_tokens);

/// The fewest microbatches, equally many for each of `replicas`, with which pack_step() packs
/// samples of at most max_tokens tokens each.
std::uint32_t microbatches_needed(std::span<const sample_work> samples, std::uint32_t replicas,
                                  std::uint64_t max_tokens);

/// The arguments of rrfp.pack(), with their names. 0 stands for None.
struct pack_options {
  std::uint64_t max_tokens = 0;    ///< of a microbatch; 0: no limit
  std::uint32_t microbatches = 0;  ///< of each replica; 0: as few as max_tokens allows
  std::uint32_t replicas = 1;
  /// The size of a step over all replicas, in samples or in tokens; both 0: all samples are one
  /// step. With a number of microbatches, a step leaves what does not fit to the next one.
  std::uint64_t batch_size = 0;
  std::uint64_t batch_tokens = 0;
  std::uint32_t delay = 0;  ///< steps, at most, that an outlier waits
  bool shuffle = true;      ///< a new order for each epoch; else that of the samples
  bool drop_last = false;   ///< leaves out a last step with fewer samples than batch_size
  std::uint64_t seed = 0;
};

/// An outlier that waits.
struct held_sample {
  std::uint32_t sample = 0;
  std::uint64_t since = 0;  ///< the step that it would have been in

  bool operator==(const held_sample&) const = default;
};

/// Where a packer is: all that changes from step to step.
struct pack_position {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;              ///< of the epoch
  std::uint64_t next = 0;              ///< place in the order of the epoch
  std::vector<held_sample> held = {};  ///< the longest waiting first

  bool operator==(const pack_position&) const = default;
};

struct packed_step {
  packed_replicas replicas;
  /// The samples that have waited, and for how many steps.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> delays;
};

/// Not thread-safe.
class packer {
 public:
  /// Errors: no samples, a sample with more tokens than max_tokens, work that is negative or not
  /// finite, options out of range.
  static result<packer> make(std::vector<sample_work> samples, const pack_options& options);

  /// The next step. After the last one of an epoch the position is the beginning of the next epoch.
  /// Each sample occurs once in an epoch (but for drop_last).
  packed_step next();

  const pack_position& position() const { return position_; }
  /// Error: a position of other samples.
  status go_to(pack_position position);

  std::span<const sample_work> samples() const { return samples_; }

 private:
  /// The samples that a step takes, and the position after it.
  struct taken_samples {
    std::vector<std::uint32_t> samples;
    std::vector<std::pair<std::uint32_t, std::uint64_t>> delays;
    pack_position after;
  };

  packer(std::vector<sample_work> samples, const pack_options& options);

  /// At most `samples_max` samples, but all outliers that are due.
  taken_samples take(std::size_t samples_max) const;
  /// Whether no step of the epoch is left.
  bool is_over(const pack_position& p) const;
  bool is_full(const taken_samples& taken, std::uint64_t tokens, std::uint32_t sample) const;
  std::optional<packed_replicas> pack(const std::vector<std::uint32_t>& samples) const;
  void order_epoch();

  std::vector<sample_work> samples_;
  pack_options options_;
  /// Work above which a sample is an outlier.
  double share_ = 0;
  /// Microbatches of a step over all replicas, on average.
  std::uint64_t microbatches_ = 1;
  /// Outliers that a step takes from the queue, at most.
  std::uint64_t released_max_ = 1;
  pack_position position_;
  std::vector<std::uint32_t> order_;  ///< of the epoch
};

}  // namespace rrfp::workload
