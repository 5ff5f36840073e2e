/// Policies for tests: every hint as a table of lanes and ranks, and a rule for the lane order.
///
/// A core and the naive model it is compared with each need a policy object of their own, so a hint
/// travels as plain data and table_policy is made from it twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp::testing {

/// A bijection on 64 bits that leaves no pattern (the finalizer of SplitMix64).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// A small generator, equal on every platform.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : state_(mix(seed)) {}

  std::uint64_t next() { return mix(state_++); }
  /// 0..bound-1; `bound` >= 1.
  std::uint32_t below(std::size_t bound) { return static_cast<std::uint32_t>(next() % bound); }
  /// first..last, both included.
  std::uint32_t between(std::uint32_t first, std::uint32_t last) {
    return first + below(last - first + 1);
  }
  bool one_in(std::uint32_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

/// 0 for F, 1 for B and BW, 2 for W.
constexpr std::uint32_t row_of(task_kind kind) {
  return kind == task_kind::forward ? 0 : kind == task_kind::weight ? 2 : 1;
}

/// How the order of the lanes changes with what has run.
enum class lane_rule : std::uint8_t {
  fixed,      ///< 0, 1, 2, 3 always
  alternate,  ///< lanes 0 and 1 in turn, as BF does; the others after them
  random,     ///< any subset in any order, drawn anew after every launch
};

/// A hint for one stage.
struct hint_table {
  pipeline_shape shape;
  std::uint32_t lanes = 1;
  lane_rule rule = lane_rule::fixed;
  std::uint64_t seed = 0;
  std::vector<bool> fused;          ///< by chunk * m + microbatch
  std::vector<std::uint32_t> lane;  ///< by index()
  std::vector<std::uint64_t> rank;  ///< by index()

  explicit hint_table(const pipeline_shape& s, bool all_fused = true)
      : shape(s),
        fused(std::size_t{s.chunks} * s.microbatches, all_fused),
        lane(fused.size() * 3),
        rank(fused.size() * 3) {}

  std::size_t pair(microbatch_id mb, chunk_id chunk) const {
    return std::size_t{chunk.value()} * shape.microbatches + mb.value();
  }
  std::size_t index(const task& t) const {
    return row_of(t.kind) * fused.size() + pair(t.mb, t.chunk);
  }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const {
    return fused[pair(mb, chunk)] ? task_kind::backward_weight : task_kind::backward;
  }
  /// Every task of the stage's step: F, its backward, and W where it is split off.
  std::vector<task> tasks() const {
    std::vector<task> all;
    for (std::uint32_t c = 0; c < shape.chunks; ++c) {
      for (std::uint32_t i = 0; i < shape.microbatches; ++i) {
        const microbatch_id mb{i};
        const chunk_id chunk{c};
        all.push_back({task_kind::forward, mb, chunk});
        all.push_back({backward_of(mb, chunk), mb, chunk});
        if (!fused[pair(mb, chunk)]) all.push_back({task_kind::weight, mb, chunk});
      }
    }
    return all;
  }
  /// Lanes and ranks from functions of the task.
  template <class Lane, class Rank>
  hint_table& assign(Lane lane_of, Rank rank_of) {
    for (const auto& t : tasks()) {
      lane[index(t)] = lane_of(t);
      rank[index(t)] = rank_of(t);
    }
    return *this;
  }
};

class table_policy final : public policy {
 public:
  explicit table_policy(std::shared_ptr<const hint_table> table) : table_(std::move(table)) {}
  table_policy(const table_policy& o)
      : policy(), table_(o.table_), launches_(o.launches_), second_first_(o.second_first_) {}

  std::string_view name() const override { return "table"; }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return table_->backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return table_->lanes; }
  std::uint32_t lane_of(const task& t) const override { return table_->lane[table_->index(t)]; }
  std::uint64_t rank(const task& t) const override { return table_->rank[table_->index(t)]; }
  lane_order order(const stage_view&) const override {
    switch (table_->rule) {
      case lane_rule::fixed: return {};
      case lane_rule::alternate:
        return second_first_ ? lane_order{{1, 0}, 2} : lane_order{{0, 1}, 2};
      case lane_rule::random: return random_order();
    }
    return {};
  }
  void reset() override {
    launches_ = 0;
    second_first_ = false;
  }
  void launched(const task& t) override {
    ++launches_;
    second_first_ = lane_of(t) == 0;
  }
  void waited() override { second_first_ = false; }

 private:
  lane_order random_order() const {
    random_source random{table_->seed + launches_};
    lane_order order{{0, 1, 2, 3}, 0};
    for (std::uint32_t i = table_->lanes - 1; i > 0; --i)
      std::swap(order.lane[i], order.lane[random.below(i + 1)]);
    order.count = random.below(table_->lanes + 1);
    return order;
  }

  std::shared_ptr<const hint_table> table_;
  std::uint64_t launches_ = 0;
  bool second_first_ = false;
};

// ---- hints

/// The paper's BF (fused) or BFW (split): backward and forward in turn, W last.
inline hint_table bf_hint(const pipeline_shape& shape, bool fused) {
  hint_table hint{shape, fused};
  hint.lanes = 3;
  hint.rule = lane_rule::alternate;
  return hint.assign(
      [](const task& t) {
        return is_backward(t.kind) ? 0U : t.kind == task_kind::forward ? 1U : 2U;
      },
      [&](const task& t) {
        const auto chunk =
            t.kind == task_kind::forward ? t.chunk.value() : shape.chunks - 1 - t.chunk.value();
        return std::uint64_t{chunk} * shape.microbatches + t.mb.value();
      });
}

/// The kinds in a fixed order of preference, `first` before all others; the oldest microbatch
/// first.
inline hint_table kind_first_hint(const pipeline_shape& shape, bool fused, task_kind first) {
  hint_table hint{shape, fused};
  hint.lanes = 4;
  return hint.assign(
      [&](const task& t) { return row_of(t.kind) == row_of(first) ? 0U : 1U + row_of(t.kind); },
      [](const task& t) { return t.mb.value(); });
}

/// One lane that ranks everything backwards: the youngest microbatch first, F before B before W.
inline hint_table reversed_hint(const pipeline_shape& shape, bool fused) {
  hint_table hint{shape, fused};
  return hint.assign([](const task&) { return 0U; },
                     [&](const task& t) {
                       return (std::uint64_t{shape.microbatches} - t.mb.value()) * 3 +
                              row_of(t.kind);
                     });
}

/// Random lanes, ranks with ties, lane orders, and a random choice of what is fused.
inline hint_table random_hint(const pipeline_shape& shape, random_source& random) {
  hint_table hint{shape, random.one_in(3)};
  if (random.one_in(3))
    for (std::size_t i = 0; i < hint.fused.size(); ++i) hint.fused[i] = random.one_in(2);
  hint.lanes = random.between(1, lanes_max);
  hint.rule = static_cast<lane_rule>(random.below(3));
  if (hint.lanes < 2 && hint.rule == lane_rule::alternate) hint.rule = lane_rule::fixed;
  hint.seed = random.next();
  const auto spread = random.between(1, 100);
  return hint.assign([&](const task&) { return random.below(hint.lanes); },
                     [&](const task&) { return random.below(spread); });
}

/// A sequence as a table: one lane, ranked by position.
inline hint_table sequence_hint(const pipeline_shape& shape, const sequence& order) {
  hint_table hint{shape};
  for (const auto& t : order)
    if (t.kind == task_kind::backward) hint.fused[hint.pair(t.mb, t.chunk)] = false;
  for (std::size_t at = 0; at < order.size(); ++at) hint.rank[hint.index(order[at])] = at;
  return hint;
}

// ---- sequences

/// 1F1B; linear placement.
inline sequence one_f_one_b(const pipeline_shape& shape, stage_id stage) {
  const auto m = shape.microbatches;
  const auto warm_up = std::min(shape.stages - 1 - stage.value(), m);
  sequence order;
  const auto add = [&](task_kind kind, std::uint32_t mb) {
    order.push_back({kind, microbatch_id{mb}, chunk_id{0}});
  };
  for (std::uint32_t i = 0; i < warm_up; ++i) add(task_kind::forward, i);
  for (std::uint32_t i = 0; i < m - warm_up; ++i) {
    add(task_kind::forward, warm_up + i);
    add(task_kind::backward_weight, i);
  }
  for (auto i = m - warm_up; i < m; ++i) add(task_kind::backward_weight, i);
  return order;
}

/// Sequences that can end: any order in which the tasks could run one at a time. Each hint gives
/// the split of its stage's backwards.
inline std::vector<sequence> random_sequences(const std::vector<hint_table>& hints,
                                              random_source& random) {
  struct place {
    std::uint32_t stage;
    task what;
  };
  const auto& shape = hints[0].shape;
  std::vector<place> possible;
  for (std::uint32_t i = 0; i < shape.microbatches; ++i)
    possible.push_back({0, {task_kind::forward, microbatch_id{i}, chunk_id{0}}});
  std::vector<sequence> sequences(shape.stages);
  const auto offer = [&](task_kind kind, microbatch_id mb, std::uint32_t vs) {
    const auto [stage, chunk] = shape.at(virtual_stage_id{vs});
    if (is_backward(kind)) kind = hints[stage.value()].backward_of(mb, chunk);
    possible.push_back({stage.value(), {kind, mb, chunk}});
  };
  while (!possible.empty()) {
    const auto pick = random.below(possible.size());
    const auto [stage, t] = possible[pick];
    possible[pick] = possible.back();
    possible.pop_back();
    sequences[stage].push_back(t);
    const auto vs = shape.virtual_stage(stage_id{stage}, t.chunk).value();
    if (t.kind == task_kind::forward) {
      const bool last = vs + 1 == shape.virtual_stages();
      offer(last ? task_kind::backward : task_kind::forward, t.mb, last ? vs : vs + 1);
    } else if (is_backward(t.kind)) {
      if (vs > 0) offer(task_kind::backward, t.mb, vs - 1);
      if (t.kind == task_kind::backward) offer(task_kind::weight, t.mb, vs);
    }
  }
  return sequences;
}

}  // namespace rrfp::testing
