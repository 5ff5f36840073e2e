#include "batches.hpp"

#include <ATen/ops/tensor_split.h>
#include <fmt/format.h>

namespace rrfp {

result<std::vector<compute::microbatch>> cut(
    const batch& rows, std::int64_t count,
    const std::function<std::int64_t(const at::Tensor&)>& count_of) {
  std::vector<compute::microbatch> all;
  if (count == 0) return all;
  const auto share = [&](const char* name, const at::Tensor& whole, auto assign) -> status {
    if (!whole.defined()) return success();
    if (whole.dim() == 0 || whole.size(0) < count)
      return error{fmt::format("batch.{}: expected at least {} rows, one per microbatch, got {}",
                               name, count, whole.dim() == 0 ? 0 : whole.size(0))};
    all.resize(static_cast<std::size_t>(count));
    const auto parts = at::tensor_split(whole, count, 0);
    // Copies, so that each part has the alignment of libtorch's allocator.
    for (std::size_t i = 0; i < all.size(); ++i)
      assign(all[i], parts[i].detach().clone(at::MemoryFormat::Contiguous));
    return success();
  };
  if (rows.inputs.defined() && rows.targets.defined() && rows.inputs.dim() > 0 &&
      rows.targets.dim() > 0 && rows.inputs.size(0) != rows.targets.size(0))
    return error{fmt::format("batch: expected as many targets as inputs, got {} and {} rows",
                             rows.targets.size(0), rows.inputs.size(0))};
  auto inputs =
      share("inputs", rows.inputs, [](auto& mb, at::Tensor part) { mb.inputs = std::move(part); });
  if (!inputs) return inputs.failure();
  auto targets = share("targets", rows.targets, [&](auto& mb, at::Tensor part) {
    mb.tokens = count_of(part);
    mb.targets = std::move(part);
  });
  if (!targets) return targets.failure();
  all.resize(static_cast<std::size_t>(count));  // there is neither in a process between
  return all;
}

status check_microbatches(const std::vector<compute::microbatch>& all, needed_parts needed) {
  std::int64_t counted = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& mb = all[i];
    if (needed.inputs && !mb.inputs.defined())
      return error{fmt::format(
          "microbatch {}: expected inputs in the process of the first stage, got none", i)};
    if (needed.targets && !mb.targets.defined())
      return error{fmt::format(
          "microbatch {}: expected targets in the process of the last stage, got none", i)};
    if (mb.tokens < 0)
      return error{
          fmt::format("microbatch {}: expected a count of 0 or more, got {}", i, mb.tokens)};
    if (__builtin_add_overflow(counted, mb.tokens, &counted))
      return error{fmt::format("microbatch {}: expected counts whose sum is below 2^63, got {}", i,
                               mb.tokens)};
  }
  if (needed.targets && counted == 0)
    return error{"batch: expected targets that count, got a count of 0 in all microbatches"};
  return success();
}

}  // namespace rrfp
