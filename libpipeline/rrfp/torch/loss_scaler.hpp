/// The dynamic scale of the loss, by the rule of torch.amp.GradScaler: doubled after an interval of
/// steps without an infinite or NaN gradient, halved after a step with one.
#pragma once

#include <cmath>
#include <cstdint>

#include <rrfp/job/options.hpp>

namespace rrfp::compute {

class loss_scaler {
 public:
  explicit loss_scaler(const job::train_options& o)
      : scale_(o.loss_scale), interval_(o.loss_scale_interval) {}

  bool is_on() const { return scale_ > 0; }
  /// 1 if off.
  double scale() const { return is_on() ? scale_ : 1; }
  std::int64_t good_steps() const { return good_steps_; }
  void restore(double scale, std::int64_t good_steps) {
    scale_ = scale;
    good_steps_ = good_steps;
  }

  void update(bool step_skipped) {
    if (!is_on()) return;
    if (step_skipped) {
      scale_ /= 2;
      good_steps_ = 0;
    } else if (++good_steps_ == interval_) {
      // As a float, which GradScaler has, it stays finite.
      if (std::isfinite(static_cast<float>(scale_ * 2))) scale_ *= 2;
      good_steps_ = 0;
    }
  }

 private:
  double scale_;
  std::int64_t interval_;
  std::int64_t good_steps_ = 0;  ///< since the scale changed
};

}  // namespace rrfp::compute
