#include <algorithm>
#include <cmath>
#include <numbers>

#include <rrfp/compute/lr_schedule.hpp>

namespace rrfp::compute {

double lr_of(const job::train_options& train, step_id step) {
  const auto s = step.value();
  const auto warmup = train.warmup_steps;
  if (s < warmup) return train.lr * static_cast<double>(s + 1) / static_cast<double>(warmup);
  if (train.steps <= warmup) return train.lr;
  const auto done = static_cast<double>(s - warmup) / static_cast<double>(train.steps - warmup);
  const auto half_cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(done, 1.0)));
  return train.lr_min + (train.lr - train.lr_min) * half_cosine;
}

}  // namespace rrfp::compute
