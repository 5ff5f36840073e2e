#include "candidates.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::experiment {

namespace {

using simulate::nanoseconds;

/// The hint of a stage as its ranks see it: what has run is counted by the stage's core alone.
class hint_of_stage final : public policy {
 public:
  explicit hint_of_stage(const policy& hint) : hint_(hint) {}

  std::string_view name() const override { return hint_.name(); }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return hint_.backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return hint_.lanes(); }
  std::uint32_t lane_of(const task& t) const override { return hint_.lane_of(t); }
  std::uint64_t rank(const task& t) const override { return hint_.rank(t); }
  lane_order order(const stage_view& now) const override { return hint_.order(now); }
  std::uint32_t weight_pieces() const override { return hint_.weight_pieces(); }

 private:
  const policy& hint_;
};

std::vector<stage_core> ranks_of(const stage_core& core) {
  auto config = core.config();
  const auto ranks = std::exchange(config.ranks, 1);
  std::vector<stage_core> all;
  for (std::uint32_t r = 0; r < ranks; ++r)
    all.emplace_back(config, [&core](const pipeline_shape&, stage_id) {
      return std::make_unique<hint_of_stage>(core.hint());
    });
  return all;
}

}  // namespace

candidates::candidates(simulate::plan& p, nanoseconds gather_cost)
    : stages_(p.shape.stages), gather_cost_(gather_cost) {
  RRFP_CHECK(p.rule.mode == dispatch_mode::ready && p.lookahead == 0 && p.rule.early_forwards == 0,
             "agreement by candidates requires mode ready and no lookahead or early forwards");
  if (p.ranks == 1) return;
  p.decides = this;
  p.rule.make_policy = [this, make = std::move(p.rule.make_policy)](const pipeline_shape& shape,
                                                                    stage_id s) {
    auto hint = make(shape, s);
    stages_[s.value()].hint = hint.get();
    return hint;
  };
}

std::span<const action> candidates::on(stage_id s, stage_core& core, const event& e,
                                       nanoseconds now) {
  auto& of = stages_[s.value()];
  if (std::holds_alternative<decide>(e)) return decide_on(of, core, now);
  if (const auto* const input = std::get_if<input_arrived>(&e)) {
    if (of.is_gathering)
      of.held.push_back(*input);
    else
      arrive(of, core, *input);
    return {};
  }
  core.on(e);
  if (const auto* const finished = std::get_if<task_finished>(&e)) {
    if (core.outstanding() == 0)
      for (auto& rank : of.ranks) rank.on(task_finished{finished->seq, rank_id{0}});
    return {};
  }
  if (of.ranks.empty()) of.ranks = ranks_of(core);
  for (auto& rank : of.ranks) rank.on(e);
  of.picks_are_due = true;
  return {};
}

std::optional<nanoseconds> candidates::decides_again_after(stage_id s) {
  if (!stages_[s.value()].is_gathering) return std::nullopt;
  return gather_cost_;
}

std::span<const action> candidates::decide_on(stage& of, stage_core& core, nanoseconds now) {
  if (core.outstanding() != 0 || (of.is_gathering && now < of.gathered_at)) return {};
  of.answer.clear();
  if (std::exchange(of.is_gathering, false)) {
    ++of.cost.counts.gathers;
    of.cost.gathering += gather_cost_;
    if (std::ranges::all_of(of.picks, [&](const auto& pick) { return pick == core.next(); }))
      return launch_on(of, core);
    defer(of, core, now);
  }
  if (!std::exchange(of.picks_are_due, false)) return of.answer;
  of.picks.clear();
  for (const auto& rank : of.ranks) of.picks.push_back(rank.next());
  end_deferral(of, now);
  const auto first = std::ranges::find_if(of.picks, [](const auto& pick) { return !!pick; });
  if (first != of.picks.end()) {
    of.is_gathering = true;
    of.gathered_at = now + gather_cost_;
    of.answer.assign(1, wait{wait_cause::ranks, **first});
    return of.answer;
  }
  // What is ready on every rank is ready on each, but a limit may stop each in favour of an F that
  // is on that rank alone.
  if (const auto common = core.next()) {
    of.answer.assign(1, wait{wait_cause::ranks, *common});
    return of.answer;
  }
  return core.on(decide{});
}

std::span<const action> candidates::launch_on(stage& of, stage_core& core) {
  for (auto& rank : of.ranks) rank.on(decide{});
  const auto launched = core.on(decide{});
  of.answer.assign(launched.begin(), launched.end());
  release(of, core);
  of.picks_are_due = true;
  return of.answer;
}

void candidates::defer(stage& of, stage_core& core, nanoseconds now) {
  ++of.cost.counts.deferrals;
  release(of, core);
  const auto common = core.next();
  if (common) of.deferred_since = now;
  of.answer.assign(1, wait{wait_cause::ranks, common.value_or(task{})});
  of.hint->waited();
}

void candidates::end_deferral(stage& of, nanoseconds now) {
  if (of.deferred_since) of.cost.deferred += now - *of.deferred_since;
  of.deferred_since.reset();
}

void candidates::arrive(stage& of, stage_core& core, const input_arrived& input) {
  core.on(input);
  auto& rank = of.ranks[input.rank.value()];
  const auto ready_before = rank.ready();
  auto own = input;
  own.rank = rank_id{0};
  rank.on(own);
  of.picks_are_due = of.picks_are_due || rank.ready() != ready_before;
}

void candidates::release(stage& of, stage_core& core) {
  for (const auto& input : std::exchange(of.held, {})) arrive(of, core, input);
}

}  // namespace rrfp::experiment
