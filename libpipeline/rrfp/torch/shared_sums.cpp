/// The gradient sums of a step whose replicas run microbatches of others (microbatch_shares).
///
/// While a part is folded, the gradients of the parameters are those of the part. At its end they
/// become the sum of its replica. A part whose sum another rank opens keeps the gradients of each
/// microbatch apart until that sum is here, and then adds them one by one: as in one rank, each
/// microbatch is added to the sum of those before it.
#include <algorithm>
#include <utility>

#include <rrfp/torch/stage_compute.hpp>
#include <rrfp/torch/tensors.hpp>

namespace rrfp::compute {

namespace {

/// So that gradients of each type are aligned.
constexpr std::int64_t alignment = 64;

std::int64_t padded(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

gradients take_gradients(const std::vector<at::Tensor>& parameters) {
  gradients taken;
  for (const auto& p : parameters) taken.push_back(std::exchange(p.mutable_grad(), at::Tensor{}));
  return taken;
}

void add(gradients& sum, gradients more) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (!sum[i].defined()) {
      sum[i] = std::move(more[i]);
    } else if (more[i].defined()) {
      sum[i].add_(more[i]);
      memory_meter::drop(std::move(more[i]));
    }
  }
}

}  // namespace

void stage_compute::count_in_part(chunk_state& chunk) {
  if (shares_.are_own() || !is_training()) return;
  const auto& part = parts_[chunk.part];
  const bool is_complete = ++chunk.part_folded == part.count;
  if (!part.opens && is_sum_joined_)
    add(chunk.sums[part.sum], take_gradients(chunk.trained));
  else if (!part.opens)
    chunk.held.push_back(take_gradients(chunk.trained));
  else if (is_complete)
    chunk.sums[part.sum] = take_gradients(chunk.trained);
  if (!is_complete) return;
  ++chunk.part;
  chunk.part_folded = 0;
  leave_opened_sum();
}

/// First whether each parameter has a gradient, then the bytes of those that there are.
void stage_compute::leave_opened_sum() {
  const auto left = std::ranges::find(parts_, false, &sum_part::closes);
  if (left == parts_.end() || (!left->opens && !is_sum_joined_)) return;
  const auto number = static_cast<std::size_t>(left - parts_.begin());
  std::vector<std::uint8_t> has;
  std::vector<at::Tensor> bytes{at::Tensor{}};
  for (auto& chunk : chunks_) {
    const auto sum = chunk.sums.find(left->sum);
    if (chunk.part <= number || sum == chunk.sums.end()) return;
    for (const auto& g : sum->second) {
      has.push_back(g.defined());
      if (!g.defined()) continue;
      bytes.push_back(g.contiguous().view({-1}).view(at::kByte));
      const auto rest = padded(bytes.back().numel()) - bytes.back().numel();
      bytes.push_back(at::zeros({rest}, bytes.back().options()));
    }
  }
  has.resize(static_cast<std::size_t>(padded(static_cast<std::int64_t>(has.size()))));
  bytes.front() = at::tensor(has, at::kByte).to(config_.device);
  opened_sum_ = at::cat(bytes);
  meter_.hand_out(opened_sum_);
  bytes.clear();  // shares memory with the sum
  for (auto& chunk : chunks_) {
    for (auto& g : chunk.sums.at(left->sum))
      if (g.defined()) memory_meter::drop(std::move(g));
    chunk.sums.erase(left->sum);
  }
}

void stage_compute::add_opened_sum(const at::Tensor& opened) {
  const auto part = std::ranges::find(parts_, false, &sum_part::opens);
  RRFP_CHECK(part != parts_.end() && !is_sum_joined_, "one sum that another rank has opened");
  const auto bytes = opened.to(config_.device);
  std::int64_t parameters = 0;
  for (const auto& chunk : chunks_) parameters += static_cast<std::int64_t>(chunk.trained.size());
  auto at = padded(parameters);
  RRFP_CHECK(bytes.numel() >= at, "an opened sum tells which gradients it has");
  const auto has = bytes.narrow(0, 0, at).cpu();
  const auto* next = has.const_data_ptr<std::uint8_t>();
  for (auto& chunk : chunks_) {
    auto& sum = chunk.sums[part->sum];
    for (const auto& p : chunk.trained) {
      sum.emplace_back();
      if (*next++ == 0) continue;
      const auto length = static_cast<std::int64_t>(p.nbytes());
      RRFP_CHECK(at + length <= bytes.numel(), "an opened sum has the gradients of its stage");
      sum.back() = bytes.narrow(0, at, length).view(p.scalar_type()).view(p.sizes()).clone();
      at += padded(length);
    }
    for (auto& of_microbatch : std::exchange(chunk.held, {})) add(sum, std::move(of_microbatch));
  }
  is_sum_joined_ = true;
  leave_opened_sum();
}

/// One sum after the other, so that the order is that of the replicas, whoever holds them. The
/// others add -0, which changes no number.
void stage_compute::sum_shared_gradients(rank_group& replicas) {
  std::vector<std::int64_t> has;
  for (const auto& chunk : chunks_)
    for (std::size_t i = 0; i < chunk.trained.size(); ++i)
      has.push_back(std::ranges::any_of(chunk.sums,
                                        [&](const auto& sum) { return sum.second[i].defined(); }));
  auto of_any = at::tensor(has, at::kLong).to(config_.device);
  if (is_parallel(config_.group)) all_reduce_max(*config_.group, of_any);
  all_reduce_max(replicas, of_any);
  const auto answers = of_any.cpu();
  const auto* answer = answers.const_data_ptr<std::int64_t>();
  for (auto& chunk : chunks_) {
    for (std::size_t i = 0; i < chunk.trained.size(); ++i) {
      if (*answer++ == 0) continue;
      const auto& p = chunk.trained[i];
      at::Tensor total;
      for (std::uint32_t r = 0; r < shares_.counts.by_replica.size(); ++r) {
        const auto held = chunk.sums.find(replica_id{r});
        auto sum = held != chunk.sums.end() ? held->second[i] : at::Tensor{};
        const bool is_other = held == chunk.sums.end() && shares_.counts.of(replica_id{r}) > 0;
        if (!sum.defined())
          sum = at::full_like(p, is_other ? -0.0 : 0.0, at::MemoryFormat::Contiguous);
        if (shares_.counts.of(replica_id{r}) > 0) all_reduce_sum(replicas, sum);
        if (total.defined())
          total.add_(sum);
        else
          total = std::move(sum);
      }
      meter_.hand_out(total);
      p.mutable_grad() = std::move(total);
    }
    chunk.sums.clear();
  }
}

}  // namespace rrfp::compute
