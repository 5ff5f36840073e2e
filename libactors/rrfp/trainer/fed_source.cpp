#include "fed_source.hpp"

#include <cstdint>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <rrfp/base/step_name.hpp>

namespace rrfp {

void fed_source::feed(step_id step, std::vector<compute::microbatch> all, bool wants_outputs,
                      bool keeps_divisor) {
  const std::lock_guard lock{mutex_};
  std::int64_t divisor = 0;
  for (const auto& mb : all) divisor += mb.tokens;
  if (!is_evaluation(step)) {
    if (divisor_ != 0) divisor = divisor_;
    divisor_ = keeps_divisor ? divisor : 0;
  }
  steps_[step] = {std::move(all), wants_outputs, divisor, {}};
}

std::vector<at::Tensor> fed_source::finish_step(step_id step) {
  const std::lock_guard lock{mutex_};
  std::vector<at::Tensor> outputs;
  const auto at = steps_.find(step);
  if (at == steps_.end()) return outputs;
  for (auto& [mb, output] : at->second.outputs) outputs.push_back(std::move(output));
  steps_.erase(at);
  return outputs;
}

void fed_source::clear() {
  const std::lock_guard lock{mutex_};
  steps_.clear();
  divisor_ = 0;
}

void fed_source::begin(step_id step, const microbatch_counts& microbatches) const {
  const std::lock_guard lock{mutex_};
  const auto given = steps_.at(step).microbatches.size();
  if (given != microbatches.total())
    throw std::runtime_error(
        fmt::format("expected {} microbatches, as the leading process has given, got {}",
                    microbatches.total(), given));
}

compute::microbatch fed_source::load(step_id step, microbatch_id mb) const {
  const std::lock_guard lock{mutex_};
  return steps_.at(step).microbatches.at(mb.value());
}

std::int64_t fed_source::step_tokens(step_id step) const {
  const std::lock_guard lock{mutex_};
  const auto& s = steps_.at(step);
  for (const auto& mb : s.microbatches)
    if (!mb.targets.defined())
      throw std::runtime_error("expected targets in the process of the last stage, got none");
  return s.divisor;
}

bool fed_source::wants_outputs(step_id step) const {
  const std::lock_guard lock{mutex_};
  const auto at = steps_.find(step);
  return at != steps_.end() && at->second.wants_outputs;
}

void fed_source::keep_output(step_id step, microbatch_id mb, at::Tensor output) {
  const std::lock_guard lock{mutex_};
  if (const auto at = steps_.find(step); at != steps_.end())
    at->second.outputs[mb] = std::move(output);
}

}  // namespace rrfp
