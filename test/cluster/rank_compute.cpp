#include "rank_compute.hpp"

#include <algorithm>

#include <rrfp/base/step_name.hpp>

namespace rrfp::cluster {

rank_compute::rank_compute(const scenario& c, std::uint32_t run, rank_address at,
                           rank_state initial)
    : c_(c), run_(run), at_(at), weights_(std::move(initial)) {}

std::string rank_compute::name(const task& t) const {
  return to_string(step_) + ", replica " + std::to_string(at_.replica.value()) + " stage " +
         std::to_string(at_.stage.value()) + " rank " + std::to_string(at_.rank.value()) + ", " +
         to_string(t);
}

void rank_compute::begin_step(step_id step, const microbatch_shares& shares) {
  step_ = step;
  const auto shape = c_.widest();
  shares_ = shares;
  parts_ = shares.parts_of(at_.replica);
  sums_.assign(shape.chunks, {});
  awaits_sum_ = std::ranges::count(parts_, false, &sum_part::opens) != 0;
  leaves_sum_ = std::ranges::count(parts_, false, &sum_part::closes) != 0;
  saved_.assign(std::size_t{shape.chunks} * shape.microbatches, {});
  next_fold_.assign(shape.chunks, 0);
  held_.assign(shape.microbatches, 0);
  next_forward_.assign(shape.chunks, 0);
  slots_ = activations_ = 0;
  bytes_ = 0;
  losses_.clear();
  const auto last = shape.at(virtual_stage_id{shape.virtual_stages() - 1});
  microbatches_ = shares.of(at_.replica);
  if (last.stage == at_.stage) losses_.assign(microbatches_, 0);
}

std::optional<symbol> rank_compute::run(const launch& l, symbol input) {
  std::optional<symbol> output;
  switch (l.what.kind) {
    case task_kind::forward: output = forward(l, input); break;
    case task_kind::backward:
    case task_kind::backward_weight: output = backward(l.what, input); break;
    case task_kind::weight: ++at(l.what).pieces; break;
  }
  fold(l);
  return output;
}

std::optional<symbol> rank_compute::forward(const launch& l, symbol input) {
  const auto& shape = c_.shape;
  const auto& t = l.what;
  auto& kept = at(t);
  const auto vs = shape.virtual_stage(at_.stage, t.chunk);
  RRFP_EXPECT(!kept.input, name(t) + ": a second forward");
  if (l.pass == forward_pass::again) {
    RRFP_EXPECT(kept.early_input.has_value(), name(t) + ": again without an early pass");
    input = *kept.early_input;
  } else if (shape.is_first(vs)) {
    const auto place = shares_.place_of(at_.replica, t.mb);
    input = symbols::data(run_, step_, place.sum, place.mb, at_.rank);
  }
  const auto output = symbols::forward(weights_[t.chunk.value()], input);
  if (l.pass == forward_pass::early) {
    RRFP_EXPECT(!kept.early_input, name(t) + ": a second early forward");
    kept.early_input = input;
    return output;
  }
  kept.input = input;
  RRFP_EXPECT(next_forward_[t.chunk.value()]++ == t.mb.value() || !c_.forwards_in_order,
              name(t) + ": runs before an older microbatch");
  ++activations_;
  if (held_[t.mb.value()]++ == 0) {
    ++slots_;
    bytes_ += bytes_of(t.mb);
  }
  check_memory(t);
  if (shape.is_last(vs)) {
    kept.output = output;
    losses_[t.mb.value()] = output;
    return std::nullopt;
  }
  return l.pass == forward_pass::again ? std::nullopt : std::optional{output};
}

std::optional<symbol> rank_compute::backward(const task& t, symbol gradient) {
  const auto& shape = c_.shape;
  auto& kept = at(t);
  const auto vs = shape.virtual_stage(at_.stage, t.chunk);
  RRFP_EXPECT(kept.input.has_value(), name(t) + ": backward before forward");
  RRFP_EXPECT(!kept.weight_gradient, name(t) + ": a second backward");
  if (shape.is_last(vs)) gradient = symbols::first_gradient(*kept.output);
  kept.weight_gradient = symbols::weight_gradient(*kept.input, gradient);
  if (shape.is_first(vs)) return std::nullopt;
  return symbols::backward(weights_[t.chunk.value()], *kept.input, gradient);
}

void rank_compute::fold(const launch& l) {
  const auto chunk = l.what.chunk;
  for (std::uint32_t i = 0; i < l.folds.count; ++i) {
    const task t{l.what.kind, microbatch_id{l.folds.first.value() + i}, chunk};
    RRFP_EXPECT(t.mb.value() < microbatches_, name(t) + ": folds beyond the step");
    auto& kept = at(t);
    RRFP_EXPECT(kept.weight_gradient.has_value(), name(t) + ": folds before its backward");
    RRFP_EXPECT(!kept.is_folded, name(t) + ": contributes twice");
    RRFP_EXPECT(t.mb.value() == next_fold_[chunk.value()], name(t) + ": folds out of turn");
    ++next_fold_[chunk.value()];
    kept.is_folded = true;
    add(sums_[chunk.value()], *kept.weight_gradient);
    --activations_;
    if (--held_[t.mb.value()] > 0) continue;
    --slots_;
    bytes_ -= bytes_of(t.mb);
  }
}

void rank_compute::add(sums_of_chunk& chunk, symbol gradient) {
  const auto& part = parts_.at(chunk.part);
  if (!part.opens && awaits_sum_) {
    chunk.held.push_back(gradient);
  } else {
    auto& sum = chunk.sums[part.sum];
    sum = symbols::fold(sum, gradient);
  }
  if (++chunk.folded < part.count) return;
  ++chunk.part;
  chunk.folded = 0;
}

void rank_compute::join_opened_sum(const rank_state& sum) {
  RRFP_EXPECT(awaits_sum_, "a rank gets an opened sum that it does not go on with");
  const auto part = std::ranges::find(parts_, false, &sum_part::opens);
  awaits_sum_ = false;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    auto& own = sums_[i].sums[part->sum];
    own = sum.at(i);
    for (const auto gradient : sums_[i].held) own = symbols::fold(own, gradient);
    sums_[i].held.clear();
  }
}

std::optional<std::pair<replica_id, rank_state>> rank_compute::take_opened_sum() {
  if (!leaves_sum_) return std::nullopt;
  const auto left = std::ranges::find(parts_, false, &sum_part::closes);
  if (!left->opens && awaits_sum_) return std::nullopt;
  rank_state sum;
  for (const auto& chunk : sums_) {
    if (chunk.part <= left - parts_.begin()) return std::nullopt;
    sum.push_back(chunk.sums.at(left->sum));
  }
  leaves_sum_ = false;
  return std::pair{shares_.runner_of(microbatch_id{left->end()}), std::move(sum)};
}

std::map<replica_id, rank_state> rank_compute::sums() const {
  std::map<replica_id, rank_state> all;
  for (const auto& part : parts_)
    if (part.closes)
      for (const auto& chunk : sums_) all[part.sum].push_back(chunk.sums.at(part.sum));
  return all;
}

void rank_compute::check_memory(const task& t) const {
  const auto& limit = c_.limit;
  if (limit.slots != 0)
    RRFP_EXPECT(slots_ <= limit.slots, name(t) + ": holds " + std::to_string(slots_) +
                                           " slots, expected at most " +
                                           std::to_string(limit.slots));
  if (limit.bytes != 0)
    RRFP_EXPECT(bytes_ <= limit.bytes || slots_ == 1,
                name(t) + ": holds " + std::to_string(bytes_) + " bytes, expected at most " +
                    std::to_string(limit.bytes));
  if (limit.activations != 0)
    RRFP_EXPECT(activations_ <= limit.activations,
                name(t) + ": holds " + std::to_string(activations_) +
                    " activations, expected at most " + std::to_string(limit.activations));
}

void rank_compute::require_complete() const {
  for (std::uint32_t chunk = 0; chunk < c_.shape.chunks; ++chunk)
    RRFP_EXPECT(
        next_fold_[chunk] == microbatches_,
        name({task_kind::weight, microbatch_id{next_fold_[chunk]}, chunk_id{chunk}}) + ": is lost");
}

void rank_compute::apply(symbol scale) {
  for (std::size_t chunk = 0; chunk < weights_.size(); ++chunk)
    weights_[chunk] = symbols::updated(weights_[chunk], gradients_[chunk], scale);
}

}  // namespace rrfp::cluster
