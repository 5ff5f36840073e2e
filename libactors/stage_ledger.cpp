#include "stage_ledger.hpp"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::actors {

namespace {

constexpr rank_set bit_of(rank_id rank) { return rank_set{1} << rank.value(); }

std::string text_of(const action& a) {
  if (const auto* l = std::get_if<launch>(&a)) {
    auto text =
        fmt::format("launch {} {}: {}", l->seq.value(), to_string(l->what), rrfp::name(l->why.why));
    if (l->why.skipped > 0) text += fmt::format(", {} ranked before it", l->why.skipped);
    return text;
  }
  const auto& w = std::get<wait>(a);
  if (w.why == wait_cause::complete) return "wait: the step is complete";
  return fmt::format("wait ({}) for {}", rrfp::name(w.why), to_string(w.head));
}

}  // namespace

std::string to_text(rank_set ranks) {
  std::string text;
  for (std::uint32_t r = 0; r < 64; ++r)
    if ((ranks >> r & 1) != 0) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return (std::popcount(ranks) == 1 ? "rank " : "ranks ") + text;
}

stage_ledger::stage_ledger(const stage_config& config)
    : shape_(config.shape), all_ranks_(~rank_set{0} >> (64 - config.ranks)) {
  begin(step_id{0});
}

void stage_ledger::begin(step_id step) {
  step_ = step;
  const auto all = std::size_t{shape_.chunks} * shape_.microbatches;
  activations_.assign(all, {});
  gradients_.assign(all, {});
  finished_.assign(all, 0);
  chunks_held_.assign(shape_.microbatches, shape_.chunks);
  holds_.assign(shape_.microbatches, false);
  flights_.clear();
}

std::optional<std::int64_t> stage_ledger::arrive(const input_arrived& input, std::int64_t now) {
  auto& inputs = input.kind == task_kind::forward ? activations_ : gradients_;
  auto& one = inputs[index(input.mb, input.chunk)];
  if (one.ranks == 0) one.first = now;
  one.ranks |= bit_of(input.rank);
  if (one.ranks != all_ranks_) return std::nullopt;
  return now - one.first;
}

void stage_ledger::decide(const action& a, std::int64_t now) {
  if (const auto* l = std::get_if<launch>(&a)) {
    flights_.push_back({*l, now, all_ranks_});
    if (l->what.kind == task_kind::forward) holds_[l->what.mb.value()] = true;
  }
  decisions_[decided_++ % decisions_max] = {now, step_, a};
}

void stage_ledger::finish(launch_seq seq, rank_id rank) {
  const auto at = std::find_if(flights_.begin(), flights_.end(),
                               [&](const in_flight& f) { return f.launched.seq == seq; });
  RRFP_CHECK(at != flights_.end(), "a finished launch was decided");
  at->behind &= ~bit_of(rank);
  if (at->behind != 0) return;
  const auto& t = at->launched.what;
  auto& bits = finished_[index(t.mb, t.chunk)];
  if (t.kind == task_kind::forward) bits |= forward_finished;
  if (is_backward(t.kind)) bits |= backward_finished;
  fold(at->launched);
  flights_.erase(at);
}

/// The weight gradient of the last chunk releases the slot.
void stage_ledger::fold(const launch& l) {
  for (std::uint32_t i = 0; i < l.folds.count; ++i) {
    const microbatch_id mb{l.folds.first.value() + i};
    finished_[index(mb, l.what.chunk)] |= weight_finished;
    if (--chunks_held_[mb.value()] == 0) holds_[mb.value()] = false;
  }
}

std::int64_t stage_ledger::decided_at(launch_seq seq) const {
  const auto at = std::find_if(flights_.begin(), flights_.end(),
                               [&](const in_flight& f) { return f.launched.seq == seq; });
  RRFP_CHECK(at != flights_.end(), "the launch is not finished");
  return at->decided;
}

void stage_ledger::describe(stage_state& state, std::int64_t now) const {
  for (const auto& f : flights_)
    state.flights.push_back({f.launched.what, f.launched.seq, now - f.decided, f.behind});
  for (const auto& i : activations_) state.activations.push_back(i.ranks);
  for (const auto& i : gradients_) state.gradients.push_back(i.ranks);
  state.finished = finished_;
  for (std::uint32_t mb = 0; mb < shape_.microbatches; ++mb)
    if (holds_[mb]) state.holders.emplace_back(mb);
}

std::vector<std::string> stage_ledger::decisions() const {
  std::vector<std::string> lines;
  const auto first = decided_ > decisions_max ? decided_ - decisions_max : 0;
  for (auto i = first; i < decided_; ++i) {
    const auto& d = decisions_[i % decisions_max];
    lines.push_back(
        fmt::format("{:.6f} s {} {}", seconds(d.at), to_string(d.step), text_of(d.chosen)));
  }
  return lines;
}

}  // namespace rrfp::actors
