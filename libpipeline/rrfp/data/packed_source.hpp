/// Makes microbatches of samples, packed without padding.
///
/// Step k has the positions from k * microbatches * microbatch_size on; epoch_order maps positions
/// to samples. In their order, each microbatch has microbatch_size of them. With data.pack = "cost"
/// the same samples are divided so that the microbatches have about equal work, and at most as many
/// tokens as microbatch_size whole sequences; with data.max_tokens, into as few microbatches as
/// that limit of their tokens allows. With data.pack_delay, outliers move to later ones of as many
/// steps and one more.
#pragma once

#include <memory>

#include <rrfp/data/source.hpp>
#include <rrfp/simulate/last_steps.hpp>
#include <rrfp/workload/packer.hpp>

#include "epoch_order.hpp"
#include "sample_set.hpp"

namespace rrfp::data {

class packed_source final : public source {
 public:
  packed_source(const source_config& config, std::unique_ptr<const sample_set> samples);

  microbatch_counts counts(step_id step) const override;
  void begin(step_id step, const microbatch_counts& microbatches) const override;
  compute::microbatch load(step_id step, microbatch_id mb) const override {
    return load(step, mb, true);
  }
  compute::microbatch load_text(step_id step, microbatch_id mb) const override {
    return load(step, mb, false);
  }
  compute::microbatch_layout layout(step_id step, microbatch_id mb) const override;
  std::int64_t step_tokens(step_id step) const override;
  std::uint64_t fingerprint() const override { return samples_->fingerprint(); }
  std::string report() const override { return samples_->report(); }
  std::uint64_t undecoded_samples() const override {
    return samples_->has_undecoded_images() ? samples_->count() : 0;
  }

 private:
  compute::microbatch load(step_id step, microbatch_id mb, bool with_images) const;
  std::vector<std::uint32_t> samples_of(step_id step, microbatch_id mb) const;
  bool is_balanced() const;
  compute::microbatch_layout layout_of(const std::vector<std::uint32_t>& samples) const;

  struct packed_step {
    microbatch_counts counts;
    /// By microbatch, those of each replica together.
    std::vector<std::vector<std::uint32_t>> samples;
  };

  /// Steps among which samples move.
  std::uint64_t span() const { return std::uint64_t{config_.data.pack_delay} + 1; }
  /// Of equal work.
  std::shared_ptr<const packed_step> balanced(step_id step) const;
  packed_step balance(step_id step) const;
  /// The `span` steps from `first` on.
  std::vector<packed_step> balance_with_delay(step_id first) const;
  static void add(const workload::packed_replicas& packed,
                  const std::vector<std::uint32_t>& samples, packed_step& to);
  std::vector<workload::sample_work> work_of(const std::vector<std::uint32_t>& samples) const;

  const source_config config_;
  const std::uint64_t places_;  ///< of a step
  const std::unique_ptr<const sample_set> samples_;
  const epoch_order order_;
  mutable simulate::last_steps<std::vector<packed_step>> balanced_;  ///< by span
};

}  // namespace rrfp::data
