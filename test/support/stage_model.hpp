/// A naive second implementation of the rules of a stage, with which stage_core is compared.
///
/// It follows docs/driving-the-core.md and the public headers, and answers every question by a scan
/// of all tasks. It checks two things: the core's answer to `decide` must equal the model's, reason
/// included; and the limits and the order of folds are asserted on their own, so that an error that
/// both share in the arbiter does not hide an overrun. The model throws `rule_violation`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <rrfp/core/stage_core.hpp>
#include <rrfp/core/transcript.hpp>

#include "test_policies.hpp"

namespace rrfp::testing {

/// A broken rule of a stage; the message names it.
struct rule_violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool kept, const char* rule) {
  if (!kept) throw rule_violation{rule};
}

/// A table for each shape that a step has.
using hints_of_shapes = std::function<std::shared_ptr<const hint_table>(const pipeline_shape&)>;

class stage_model {
 public:
  stage_model(const stage_config& config, hints_of_shapes hints)
      : config_(config), hints_(std::move(hints)), m_(0) {
    begin(config.shape.microbatches, {}, 1);
    begun_ = false;
  }

  void begin(std::uint32_t microbatches, std::vector<std::uint64_t> slot_bytes,
             std::uint32_t weight_pieces) {
    begun_ = true;
    if (m_ != microbatches) {
      config_.shape.microbatches = m_ = microbatches;
      hint_.emplace(hints_(config_.shape));
      rank_tasks();
    }
    weight_pieces_ = config_.mode == dispatch_mode::ready ? std::max(weight_pieces, 1U) : 1;
    pieces_launched_.assign(config_.shape.chunks, 0);
    aborted_ = false;
    bytes_ = std::move(slot_bytes);
    bytes_.resize(m_, 0);
    pairs_.assign(std::size_t{m_} * config_.shape.chunks, {});
    std::fill(launched_.begin(), launched_.end(), false);
    launches_ = 0;
    slots_peak_ = activations_peak_ = 0;
    bytes_peak_ = 0;
    hint_->reset();
  }

  void arrived(const input_arrived& e) {
    auto& p = pair_of(e.mb, e.chunk);
    (e.kind == task_kind::forward ? p.forward_ranks : p.backward_ranks) |= std::uint64_t{1}
                                                                           << e.rank.value();
  }

  void aborted() { aborted_ = true; }

  /// Compares the core's answer to `decide` with the model's answer, and applies it.
  void decided(std::span<const action> actions) {
    std::size_t at = 0;
    const auto expect_next = [&](const action& wanted) {
      const std::string got = at < actions.size() ? to_line(actions[at]) : "nothing";
      if (at >= actions.size() || actions[at] != wanted)
        throw rule_violation{"expected '" + to_line(wanted) + "', got '" + got + "'"};
      ++at;
    };
    if (!aborted_) {
      while (queue_.size() <= config_.lookahead) {
        const auto wanted = choose();
        if (!wanted) break;
        expect_next(*wanted);
        apply(*wanted);
      }
      if (queue_.empty() && at == 0) {
        hint_->waited();
        expect_next(explain_wait());
      }
    }
    if (at != actions.size()) throw rule_violation{"one too many: '" + to_line(actions[at]) + "'"};
  }

  bool can_finish(rank_id rank) const { return unfinished(rank) != nullptr; }

  /// The rank finishes its first unfinished launch; returns that launch.
  launch finished(rank_id rank) {
    auto* const r = const_cast<running*>(unfinished(rank));
    expect(r != nullptr, "the driver finishes what runs");
    r->ranks_done |= std::uint64_t{1} << rank.value();
    const auto ended = r->what;
    if (r->ranks_done != all_ranks()) return ended;
    expect(r == &queue_.front(), "launches end in order");
    for (std::uint32_t i = 0; i < ended.folds.count; ++i)
      pair_of(microbatch_id{ended.folds.first.value() + i}, ended.what.chunk).fold_ended = true;
    queue_.pop_front();
    return ended;
  }

  bool complete() const { return remaining() == 0 && queue_.empty(); }
  std::uint32_t remaining() const {
    return static_cast<std::uint32_t>(begun_ ? ranked_.size() - launches_ : 0);
  }
  std::size_t outstanding() const { return queue_.size(); }

  memory_use memory() const {
    memory_use use;
    for (std::uint32_t i = 0; i < m_; ++i) {
      if (!holds(microbatch_id{i})) continue;
      ++use.slots;
      use.bytes += bytes_[i];
    }
    for (const auto& p : pairs_) use.activations += p.forward_launched && !p.fold_ended;
    use.slots_peak = slots_peak_;
    use.bytes_peak = bytes_peak_;
    use.activations_peak = activations_peak_;
    return use;
  }

  /// Tasks that could be launched now if they fit.
  std::uint32_t ready() const {
    std::uint32_t count = 0;
    for (std::size_t at = 0; at < ranked_.size(); ++at)
      count += !launched_[at] && is_ready(ranked_[at]);
    return count;
  }

  /// The complete state that later decisions depend on, as bytes. Not for aborted steps.
  std::string key() const {
    std::string text;
    for (const auto& p : pairs_) {
      append(text, p.forward_ranks, config_.ranks);
      append(text, p.backward_ranks, config_.ranks);
      text += static_cast<char>(p.forward_launched | p.backward_launched << 1 | p.weight_due << 2 |
                                p.fold_launched << 3 | p.fold_ended << 4 | p.forward_early << 5);
    }
    for (const auto pieces : pieces_launched_) text += static_cast<char>(pieces);
    for (const auto& r : queue_) {
      text += static_cast<char>(r.what.piece.number);
      text += static_cast<char>(r.what.pass);
      text += static_cast<char>(row_of(r.what.what.kind));
      text += static_cast<char>(r.what.what.mb.value());
      text += static_cast<char>(r.what.what.chunk.value());
      append(text, r.ranks_done, config_.ranks);
    }
    text += '|';
    const auto order = hint_->order({forward_blocked()});
    for (std::uint32_t i = 0; i < order.count; ++i) text += static_cast<char>(order.lane[i]);
    return text;
  }

 private:
  struct pair_state {
    std::uint64_t forward_ranks = 0;
    std::uint64_t backward_ranks = 0;
    bool forward_early = false;
    bool forward_launched = false;
    bool backward_launched = false;
    bool weight_due = false;
    bool fold_launched = false;
    bool fold_ended = false;
  };
  struct running {
    launch what;
    std::uint64_t ranks_done = 0;
  };

  static void append(std::string& text, std::uint64_t bits, std::uint32_t ranks) {
    for (std::uint32_t r = 0; r < ranks; r += 8) text += static_cast<char>(bits >> r & 0xff);
  }

  void rank_tasks() {
    ranked_.clear();
    lanes_.clear();
    for (std::uint32_t c = 0; c < config_.shape.chunks; ++c) {
      for (std::uint32_t i = 0; i < m_; ++i) {
        const auto backward = hint_->backward_of(microbatch_id{i}, chunk_id{c});
        ranked_.push_back({task_kind::forward, microbatch_id{i}, chunk_id{c}});
        ranked_.push_back({backward, microbatch_id{i}, chunk_id{c}});
        if (backward == task_kind::backward)
          ranked_.push_back({task_kind::weight, microbatch_id{i}, chunk_id{c}});
      }
    }
    const auto key = [&](const task& t) {
      return std::tuple{hint_->lane_of(t), hint_->rank(t), t.mb, t.chunk, t.kind};
    };
    std::sort(ranked_.begin(), ranked_.end(),
              [&](const task& a, const task& b) { return key(a) < key(b); });
    launched_.assign(ranked_.size(), false);
    for (const auto& t : ranked_) lanes_.push_back(hint_->lane_of(t));
  }

  pair_state& pair_of(microbatch_id mb, chunk_id chunk) {
    return pairs_[std::size_t{chunk.value()} * m_ + mb.value()];
  }
  const pair_state& pair_of(microbatch_id mb, chunk_id chunk) const {
    return pairs_[std::size_t{chunk.value()} * m_ + mb.value()];
  }
  std::uint64_t all_ranks() const { return ~std::uint64_t{0} >> (64 - config_.ranks); }
  const running* unfinished(rank_id rank) const {
    for (const auto& r : queue_)
      if ((r.ranks_done >> rank.value() & 1) == 0) return &r;
    return nullptr;
  }

  // ---- readiness

  bool is_ready(const task& t) const {
    const auto& p = pair_of(t.mb, t.chunk);
    switch (t.kind) {
      case task_kind::forward: return p.forward_ranks == all_ranks() && !older_forward(t);
      case task_kind::backward:
      case task_kind::backward_weight:
        return p.forward_launched &&
               (p.backward_ranks == all_ranks() ||
                config_.shape.is_last(config_.shape.virtual_stage(config_.stage, t.chunk)));
      case task_kind::weight:
        return p.backward_launched &&
               (config_.mode == dispatch_mode::in_order || fold_next(t.chunk) == t.mb.value());
    }
    return false;
  }

  /// The best-ranked task whose input is on some ranks and not on others.
  std::optional<task> best_partly_here() const {
    for (std::size_t at = 0; at < ranked_.size(); ++at) {
      const auto& t = ranked_[at];
      if (launched_[at] || t.kind == task_kind::weight) continue;
      const auto& p = pair_of(t.mb, t.chunk);
      const auto here = t.kind == task_kind::forward ? p.forward_ranks : p.backward_ranks;
      if (here != 0 && here != all_ranks()) return t;
    }
    return std::nullopt;
  }

  /// The next older F that must run before this one.
  std::optional<task> older_forward(const task& t) const {
    if (!config_.forwards_in_order || config_.mode == dispatch_mode::in_order) return std::nullopt;
    for (auto i = t.mb.value(); i-- > 0;)
      if (!pair_of(microbatch_id{i}, t.chunk).forward_launched)
        return task{task_kind::forward, microbatch_id{i}, t.chunk};
    return std::nullopt;
  }

  std::uint32_t fold_next(chunk_id chunk) const {
    std::uint32_t next = 0;
    while (next < m_ && pair_of(microbatch_id{next}, chunk).fold_launched) ++next;
    return next;
  }

  // ---- memory

  bool any_forward(microbatch_id mb) const {
    for (std::uint32_t c = 0; c < config_.shape.chunks; ++c)
      if (pair_of(mb, chunk_id{c}).forward_launched) return true;
    return false;
  }
  bool all_folded(microbatch_id mb) const {
    for (std::uint32_t c = 0; c < config_.shape.chunks; ++c)
      if (!pair_of(mb, chunk_id{c}).fold_ended) return false;
    return true;
  }
  bool holds(microbatch_id mb) const { return any_forward(mb) && !all_folded(mb); }

  /// Whether a microbatch without a slot may have one; in-order mode asks for no reserve.
  bool slot_free_for(microbatch_id mb) const {
    const auto& limit = config_.limit;
    const auto use = memory();
    if (limit.activations != 0)
      return use.activations + 1 +
                 (config_.mode == dispatch_mode::in_order ? 0 : reserve_for(mb)) <=
             limit.activations;
    const bool one_fits =
        (limit.slots == 0 || use.slots + 1 <= limit.slots) &&
        (limit.bytes == 0 || use.slots == 0 || use.bytes + bytes_[mb.value()] <= limit.bytes);
    if (!one_fits || config_.mode == dispatch_mode::in_order) return one_fits;
    bool older_waits = false;
    std::uint64_t largest_older = 0;
    for (std::uint32_t i = 0; i < mb.value(); ++i) {
      if (any_forward(microbatch_id{i})) continue;
      older_waits = true;
      largest_older = std::max(largest_older, bytes_[i]);
    }
    if (!older_waits) return true;
    return (limit.slots == 0 || use.slots + 2 <= limit.slots) &&
           (limit.bytes == 0 || use.bytes + bytes_[mb.value()] + largest_older <= limit.bytes);
  }

  /// F that the oldest microbatch before `mb` with any F left has yet to run here.
  std::uint32_t reserve_for(microbatch_id mb) const {
    for (std::uint32_t i = 0; i < mb.value(); ++i) {
      std::uint32_t left = 0;
      for (std::uint32_t c = 0; c < config_.shape.chunks; ++c)
        left += !pair_of(microbatch_id{i}, chunk_id{c}).forward_launched;
      if (left != 0) return left;
    }
    return 0;
  }

  std::uint32_t oldest_unfinished() const {
    for (std::uint32_t i = 0; i < m_; ++i)
      for (std::uint32_t c = 0; c < config_.shape.chunks; ++c)
        if (!pair_of(microbatch_id{i}, chunk_id{c}).backward_launched) return i;
    return m_;
  }
  std::uint32_t oldest_without_slot() const {
    std::uint32_t i = 0;
    while (i < m_ && any_forward(microbatch_id{i})) ++i;
    return i;
  }
  std::uint32_t forwards_ahead() const {
    std::uint32_t ahead = 0;
    for (const auto& p : pairs_) ahead += std::uint32_t{p.forward_launched} - p.backward_launched;
    return ahead;
  }
  /// At the limit, one chunk: no F. Several: of F and B only the next step of the oldest unfinished
  /// microbatch, in its own order F0 F1 .. B1 B0.
  bool back_pressure_forbids(const task& t) const {
    if (config_.limit.run_ahead == 0 || forwards_ahead() < config_.limit.run_ahead) return false;
    if (t.kind == task_kind::weight) return false;
    if (config_.shape.chunks == 1) return t.kind == task_kind::forward;
    const microbatch_id oldest{oldest_unfinished()};
    if (t.mb != oldest) return true;
    std::uint32_t next = 0;
    while (next < config_.shape.chunks && pair_of(oldest, chunk_id{next}).forward_launched) ++next;
    if (next < config_.shape.chunks) return t.kind != task_kind::forward || t.chunk.value() != next;
    while (pair_of(oldest, chunk_id{next - 1}).backward_launched) --next;
    return t.kind == task_kind::forward || t.chunk.value() != next - 1;
  }

  // ---- arbitration

  std::vector<std::uint32_t> lane_sequence() const {
    const auto named = hint_->order({forward_blocked()});
    std::vector<std::uint32_t> sequence(named.lane.begin(), named.lane.begin() + named.count);
    for (std::uint32_t lane = 0; lane < lanes_max; ++lane)
      if (std::find(sequence.begin(), sequence.end(), lane) == sequence.end())
        sequence.push_back(lane);
    return sequence;
  }

  /// Whether an F is ready, and none that is may run.
  bool forward_blocked() const {
    bool seen = false;
    first_looked_at looked_at{};
    for (std::size_t at = 0; at < ranked_.size(); ++at) {
      const auto& t = ranked_[at];
      if (launched_[at] || t.kind != task_kind::forward || !is_ready(t)) continue;
      if (is_for_spare_time(t)) continue;
      if (may_run(t, looked_at)) return false;
      seen = true;
    }
    return seen;
  }

  std::optional<launch> choose() const {
    if (config_.mode == dispatch_mode::in_order) return choose_in_order();
    bool blocked = false;
    const auto all_ready = ready();
    for (const auto lane : lane_sequence()) {
      std::uint32_t skipped = 0;
      first_looked_at looked_at{};
      for (std::size_t at = 0; at < ranked_.size(); ++at) {
        const auto& t = ranked_[at];
        if (launched_[at] || lanes_[at] != lane) continue;
        if (is_ready(t) && !is_for_spare_time(t)) {
          if (may_run(t, looked_at)) {
            const auto why = all_ready == 1 ? choice::only_choice
                             : blocked      ? choice::memory_bound
                             : skipped == 0 ? choice::hint_head
                                            : choice::skipped_not_ready;
            return launch_of(t, {why, skipped});
          }
          blocked = true;
        }
        ++skipped;
      }
    }
    return queue_.empty() ? choose_for_spare_time() : std::nullopt;
  }

  /// F that have run early, and not again.
  std::uint32_t early() const {
    std::uint32_t count = 0;
    for (const auto& p : pairs_) count += p.forward_early && !p.forward_launched;
    return count;
  }
  /// The second pass of an F that has no slot and whose gradient has not arrived.
  bool is_for_spare_time(const task& t) const {
    const auto& p = pair_of(t.mb, t.chunk);
    return t.kind == task_kind::forward && p.forward_early && !holds(t.mb) &&
           p.backward_ranks != all_ranks();
  }

  /// Such a second pass, or else an F that waits for memory and runs early.
  std::optional<launch> choose_for_spare_time() const {
    const bool may_begin = early() < config_.early_forwards;
    for (const bool again : {true, false}) {
      for (const auto lane : lane_sequence()) {
        std::uint32_t skipped = 0;
        first_looked_at looked_at{};
        for (std::size_t at = 0; at < ranked_.size(); ++at) {
          const auto& t = ranked_[at];
          if (launched_[at] || lanes_[at] != lane) continue;
          const bool last =
              config_.shape.is_last(config_.shape.virtual_stage(config_.stage, t.chunk));
          const bool ran = pair_of(t.mb, t.chunk).forward_early;
          const bool open =
              again ? is_for_spare_time(t) && may_run(t, looked_at)
                    : may_begin && t.kind == task_kind::forward && is_ready(t) && !ran && !last;
          if (open) {
            auto l =
                launch_of(t, {ready() == 1 ? choice::only_choice : choice::memory_bound, skipped});
            if (!again) l.pass = forward_pass::early;
            return l;
          }
          ++skipped;
        }
      }
    }
    return std::nullopt;
  }

  /// Whether an F that needs a slot and has not run early, one that has and whose gradient has
  /// arrived, one that has and whose gradient has not, was looked at.
  using first_looked_at = std::array<bool, 3>;

  bool may_run(const task& t, first_looked_at& looked_at) const {
    if (back_pressure_forbids(t)) return false;
    if (t.kind != task_kind::forward) return true;
    if (config_.limit.activations == 0 && holds(t.mb)) return true;
    const bool ran_early = pair_of(t.mb, t.chunk).forward_early;
    // Under a byte limit the core looks at the best-ranked of a lane and at the oldest, no further.
    const auto group = !ran_early ? 0 : is_for_spare_time(t) ? 2 : 1;
    const bool first = !std::exchange(looked_at[group], true);
    const bool oldest = t.mb.value() == oldest_without_slot();
    if (config_.limit.bytes != 0 && !first && !oldest) return false;
    const bool leaves_slots =
        ran_early || oldest || early() == 0 ||
        (config_.limit.bytes == 0 && memory().slots + early() < config_.limit.slots);
    return leaves_slots && slot_free_for(t.mb);
  }

  std::optional<launch> choose_in_order() const {
    const auto head = std::find(launched_.begin(), launched_.end(), false) - launched_.begin();
    if (static_cast<std::size_t>(head) == ranked_.size()) return std::nullopt;
    const auto& t = ranked_[static_cast<std::size_t>(head)];
    if (!is_ready(t)) return std::nullopt;
    const bool must_take = config_.limit.activations != 0 || !holds(t.mb);
    if (t.kind == task_kind::forward && must_take && !slot_free_for(t.mb)) return std::nullopt;
    return launch_of(t, {ready() == 1 ? choice::only_choice : choice::hint_head, 0});
  }

  launch launch_of(const task& t, reason why) const {
    launch l{launch_seq{next_seq_}, t, why, {t.mb, 0}, {}};
    if (t.kind == task_kind::forward && pair_of(t.mb, t.chunk).forward_early)
      l.pass = forward_pass::again;
    if (t.kind == task_kind::weight) {
      l.piece = {pieces_launched_[t.chunk.value()], weight_pieces_};
      if (!l.piece.is_last()) return l;
    }
    if (!has_weight(t.kind) || fold_next(t.chunk) != t.mb.value()) return l;
    l.folds.count = 1;
    for (auto i = t.mb.value() + 1; i < m_ && pair_of(microbatch_id{i}, t.chunk).weight_due; ++i)
      ++l.folds.count;
    return l;
  }

  void apply(const launch& l) {
    const auto& t = l.what;
    const auto at =
        static_cast<std::size_t>(std::find(ranked_.begin(), ranked_.end(), t) - ranked_.begin());
    expect(at < ranked_.size() && !launched_[at], "a task is launched once a step");
    auto& p = pair_of(t.mb, t.chunk);
    ++next_seq_;
    if (l.pass == forward_pass::early) {
      expect(!std::exchange(p.forward_early, true), "an F runs early once");
      hint_->launched(t);
      queue_.push_back({l, 0});
      return;
    }
    expect(!back_pressure_forbids(t), "at the limit D only the oldest microbatch goes on");
    if (t.kind == task_kind::weight) {
      auto& pieces = pieces_launched_[t.chunk.value()];
      expect(l.piece.number == pieces, "the pieces of a W run in order");
      expect(config_.mode == dispatch_mode::in_order || fold_next(t.chunk) == t.mb.value(),
             "one W of a chunk runs after the other");
      pieces = l.piece.is_last() ? 0 : pieces + 1;
    }
    if (!l.piece.is_last()) {
      hint_->launched(t);
      queue_.push_back({l, 0});
      return;
    }
    launched_[at] = true;
    ++launches_;
    if (t.kind == task_kind::forward) p.forward_launched = true;
    if (is_backward(t.kind)) p.backward_launched = true;
    if (has_weight(t.kind)) p.weight_due = true;
    for (std::uint32_t i = 0; i < l.folds.count; ++i) {
      auto& folded = pair_of(microbatch_id{l.folds.first.value() + i}, t.chunk);
      expect(folded.weight_due && !folded.fold_launched, "what is folded was launched");
      expect(i + l.folds.first.value() == 0 ||
                 pair_of(microbatch_id{l.folds.first.value() + i - 1}, t.chunk).fold_launched,
             "folds follow the numbers of the microbatches");
      folded.fold_launched = true;
    }
    if (l.pass != forward_pass::again) hint_->launched(t);
    queue_.push_back({l, 0});
    expect_limits_kept();
  }

  void expect_limits_kept() {
    const auto use = memory();
    const auto& limit = config_.limit;
    expect(limit.slots == 0 || use.slots <= limit.slots, "no more microbatches than slots");
    expect(limit.bytes == 0 || use.bytes <= limit.bytes || use.slots == 1,
           "no more bytes than the limit, but for one microbatch alone");
    expect(limit.activations == 0 || use.activations <= limit.activations,
           "no more activations than the limit");
    const auto beyond = config_.shape.chunks == 1 ? 0 : config_.shape.chunks;
    expect(limit.run_ahead == 0 || forwards_ahead() <= limit.run_ahead + beyond,
           "D exceeds its limit by no more than the chunks, and not at all with one");
    slots_peak_ = std::max(slots_peak_, use.slots);
    bytes_peak_ = std::max(bytes_peak_, use.bytes);
    activations_peak_ = std::max(activations_peak_, use.activations);
  }

  wait explain_wait() const {
    if (remaining() == 0) return {wait_cause::complete, {}};
    const auto all_ready = ready();
    if (config_.mode == dispatch_mode::in_order) {
      const auto head = std::find(launched_.begin(), launched_.end(), false) - launched_.begin();
      const auto& t = ranked_[static_cast<std::size_t>(head)];
      const auto& p = pair_of(t.mb, t.chunk);
      const auto here = t.kind == task_kind::forward  ? p.forward_ranks
                        : t.kind == task_kind::weight ? 0
                                                      : p.backward_ranks;
      return {is_ready(t)                        ? wait_cause::memory
              : all_ready != 0                   ? wait_cause::in_order
              : here != 0 && here != all_ranks() ? wait_cause::ranks
                                                 : wait_cause::input,
              t};
    }
    if (all_ready == 0)
      if (const auto part = best_partly_here()) return {wait_cause::ranks, *part};
    for (const auto lane : lane_sequence())
      for (std::size_t at = 0; at < ranked_.size(); ++at)
        if (!launched_[at] && lanes_[at] == lane && (all_ready == 0 || is_ready(ranked_[at])))
          return all_ready == 0 ? wait{wait_cause::input, without_own_cause(ranked_[at])}
                                : wait{wait_cause::memory, ranked_[at]};
    throw rule_violation{"remaining tasks lie in some lane"};
  }

  /// The task itself, or the one that it waits for in the end, if that is one of this stage.
  task without_own_cause(const task& t) const {
    if (t.kind == task_kind::forward)
      if (const auto older = older_forward(t)) return without_own_cause(*older);
    std::optional<task> cause;
    for (std::size_t at = 0; at < ranked_.size(); ++at) {
      const auto& u = ranked_[at];
      if (!launched_[at] && enables(u, t) && (!cause || u.kind == task_kind::forward)) cause = u;
    }
    return cause ? without_own_cause(*cause) : t;
  }
  bool enables(const task& u, const task& t) const {
    const auto vs = [&](const task& x) {
      return config_.shape.virtual_stage(config_.stage, x.chunk).value();
    };
    if (t.kind == task_kind::weight) {
      const bool own_ran = pair_of(t.mb, t.chunk).backward_launched;
      return is_backward(u.kind) && u.chunk == t.chunk &&
             u.mb.value() == (own_ran ? fold_next(t.chunk) : t.mb.value());
    }
    if (u.mb != t.mb) return false;
    if (t.kind == task_kind::forward) return u.kind == t.kind && vs(u) + 1 == vs(t);
    return u.kind == task_kind::forward ? u.chunk == t.chunk
                                        : is_backward(u.kind) && vs(u) == vs(t) + 1;
  }

  stage_config config_;
  hints_of_shapes hints_;
  std::optional<table_policy> hint_;
  std::uint32_t m_;
  std::vector<task> ranked_;  ///< lane by lane, best first
  std::vector<std::uint32_t> lanes_;
  std::vector<bool> launched_;
  std::vector<pair_state> pairs_;  ///< by chunk * m + microbatch
  std::deque<running> queue_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::uint32_t> pieces_launched_;  ///< by chunk, of the W that is due
  std::uint32_t weight_pieces_ = 1;
  std::uint64_t bytes_peak_ = 0;
  std::uint32_t slots_peak_ = 0;
  std::uint32_t activations_peak_ = 0;
  std::uint64_t next_seq_ = 0;
  std::size_t launches_ = 0;
  bool aborted_ = false;
  bool begun_ = false;
};

/// A core and its model with the same events; throws `rule_violation` when they differ.
class checked_stage {
 public:
  checked_stage(const stage_config& config, const hints_of_shapes& hints)
      : core_(config, policies_of(hints)), model_(config, hints) {}
  checked_stage(const stage_config& config, std::shared_ptr<const hint_table> hint)
      : checked_stage(config, [hint](const pipeline_shape&) { return hint; }) {}
  /// As one that has got `events` and whose model is `model` since then.
  checked_stage(const stage_config& config, const hints_of_shapes& hints, std::vector<event> events,
                const stage_model& model)
      : core_(config, policies_of(hints)), model_(model), events_(std::move(events)) {
    for (const auto& e : events_) core_.on(e);
  }

  void begin(step_id step, const std::vector<std::uint64_t>& slot_bytes,
             std::uint32_t weight_pieces = 1,
             std::optional<std::uint32_t> microbatches = std::nullopt) {
    feed(step_began{step, slot_bytes, weight_pieces, microbatches});
    model_.begin(microbatches.value_or(core_.config().shape.microbatches), slot_bytes,
                 weight_pieces);
  }
  void arrive(const input_arrived& e) {
    expect(feed(e).empty(), "an arrival returns no action");
    model_.arrived(e);
  }
  launch finish(rank_id rank) {
    const auto ended = model_.finished(rank);
    expect(feed(task_finished{ended.seq, rank}).empty(), "a finish returns no action");
    return ended;
  }
  void abort() {
    feed(rrfp::abort{});
    model_.aborted();
  }
  /// The actions are valid until the next call.
  std::span<const action> decide() {
    const auto next = core_.next();
    const auto actions = feed(rrfp::decide{});
    model_.decided(actions);
    const auto* const first = actions.empty() ? nullptr : std::get_if<launch>(&actions.front());
    expect(first != nullptr ? next == first->what : !next, "next() is what the core launches");
    expect(core_.memory() == model_.memory(), "the core counts memory as the model does");
    expect(core_.remaining() == model_.remaining() && core_.outstanding() == model_.outstanding() &&
               core_.ready() == model_.ready() && core_.step_complete() == model_.complete(),
           "the core counts tasks as the model does");
    return actions;
  }

  const stage_core& core() const { return core_; }
  const stage_model& model() const { return model_; }
  /// All that the core has got.
  const std::vector<event>& events() const { return events_; }

 private:
  template <class Event>
  std::span<const action> feed(Event e) {
    return core_.on(events_.emplace_back(std::move(e)));
  }
  static policy_factory policies_of(const hints_of_shapes& hints) {
    return [hints](const pipeline_shape& shape, stage_id) {
      return std::make_unique<table_policy>(hints(shape));
    };
  }

  stage_core core_;
  stage_model model_;
  std::vector<event> events_;
};

}  // namespace rrfp::testing
