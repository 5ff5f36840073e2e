#include <rrfp/schedule/stage_core.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "priority_bitmap.hpp"

namespace rrfp {

namespace {

constexpr std::uint32_t none = priority_bitmap::none;

/// The state of one (microbatch, chunk).
struct progress {
  rank_set forward_ranks = 0;   ///< the input of F has arrived there
  rank_set backward_ranks = 0;  ///< the gradient has arrived there
  bool forward_launched = false;
  bool backward_launched = false;
  bool weight_due = false;  ///< a W or BW was launched, folded or not
};

/// A range of positions in the ranking.
struct lane_range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

}  // namespace

/// The ranking is fixed at construction: every task of a step gets a position, lane after lane, so
/// that "best-ranked ready task" is "first bit set".
class stage_core::impl {
 public:
  impl(stage_config config, std::unique_ptr<policy> hint)
      : config_(std::move(config)),
        hint_(std::move(hint)),
        slots_(config_.limit, config_.shape.microbatches, config_.shape.chunks),
        progress_(std::size_t{config_.shape.microbatches} * config_.shape.chunks),
        fold_next_(config_.shape.chunks),
        backwards_of_(config_.shape.microbatches) {
    RRFP_CHECK(config_.shape.validate().ok(), "the shape must be valid");
    RRFP_CHECK(config_.stage.value() < config_.shape.stages, "the stage must belong to the shape");
    RRFP_CHECK(config_.ranks >= 1 && config_.ranks <= 64, "ranks must be 1 to 64");
    RRFP_CHECK(hint_ != nullptr, "a policy");
    const auto lanes = hint_->lanes();
    RRFP_CHECK(lanes >= 1 && lanes <= lanes_max, "lanes() must be 1 to lanes_max");
    RRFP_CHECK(config_.mode == dispatch_mode::ready || lanes == 1,
               "in-order dispatch needs a policy with one lane");
    all_ranks_ = all_ranks(config_.ranks);
    freeze_ranking();
    actions_.reserve(config_.lookahead + 2);
  }

  std::span<const action> on(const event& e) {
    actions_.clear();
    std::visit([this](const auto& x) { handle(x); }, e);
    return actions_;
  }

  stage_snapshot snapshot() const {
    const auto microbatches = config_.shape.microbatches;
    stage_snapshot s{.step = step_,
                     .microbatches = microbatches,
                     .running = running_,
                     .waits = waiting_.has_value(),
                     .waiting = waiting_.value_or(wait{}),
                     .bound = bound(),
                     .memory = slots_.use(),
                     .holders = {},
                     .ready = ready_count_,
                     .remaining = left_.count(),
                     .progress = {}};
    for (microbatch_id mb; mb.value() < microbatches; mb = microbatch_id{mb.value() + 1})
      if (slots_.holds(mb)) s.holders.push_back(mb);
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      const auto& p = progress_[i];
      s.progress.push_back({p.forward_ranks, p.backward_ranks, p.forward_launched,
                            p.backward_launched, i % microbatches < fold_next_[i / microbatches]});
    }
    for (const auto& r : running_) {
      const auto& [seq, t, why, folds] = r.launched;
      auto& done = s.progress[config_.shape.index(t.mb, t.chunk)];
      if (t.kind == task_kind::forward) done.forward_done = false;
      if (is_backward(t.kind)) done.backward_done = false;
      for (auto mb = folds.first.value(); mb < folds.first.value() + folds.count; ++mb)
        s.progress[config_.shape.index(microbatch_id{mb}, t.chunk)].weight_done = false;
    }
    return s;
  }

  const stage_config config_;
  const std::unique_ptr<policy> hint_;
  memory_slots slots_;
  counted_bitmap left_;
  std::vector<running_launch> running_;
  std::uint32_t ready_count_ = 0;

 private:
  // ---- ranking

  void freeze_ranking() {
    const auto& shape = config_.shape;
    for (std::uint32_t c = 0; c < shape.chunks; ++c) {
      for (std::uint32_t i = 0; i < shape.microbatches; ++i) {
        const microbatch_id mb{i};
        const chunk_id chunk{c};
        const auto backward = hint_->backward_of(mb, chunk);
        RRFP_CHECK(is_backward(backward), "backward_of must return B or BW");
        tasks_.push_back({task_kind::forward, mb, chunk});
        tasks_.push_back({backward, mb, chunk});
        if (backward == task_kind::backward) tasks_.push_back({task_kind::weight, mb, chunk});
      }
    }
    struct key {
      std::uint32_t lane;
      std::uint64_t rank;
      task what;
      auto operator<=>(const key&) const = default;
    };
    std::vector<key> keys;
    keys.reserve(tasks_.size());
    for (const auto& t : tasks_) {
      const auto lane = hint_->lane_of(t);
      RRFP_CHECK(lane < hint_->lanes(), "lane_of must return a lane of the policy");
      keys.push_back({lane, hint_->rank(t), t});
    }
    std::sort(keys.begin(), keys.end(), [](const key& a, const key& b) {
      return std::tie(a.lane, a.rank, a.what.mb, a.what.chunk, a.what.kind) <
             std::tie(b.lane, b.rank, b.what.mb, b.what.chunk, b.what.kind);
    });
    const auto size = static_cast<std::uint32_t>(keys.size());
    position_.assign(std::size_t{3} * shape.chunks * shape.microbatches, none);
    for (std::uint32_t at = 0; at < size; ++at) {
      tasks_[at] = keys[at].what;
      position_[index(tasks_[at])] = at;
      auto& lane = lanes_[keys[at].lane];
      if (lane.begin == lane.end) lane.begin = at;
      lane.end = at + 1;
    }
    left_ = counted_bitmap{size};
    admission_ = priority_bitmap{size};
    forwards_ = priority_bitmap{size};
    others_ = priority_bitmap{size};
  }

  /// Dense index of a task: F, backward (B or BW), W for every (chunk, microbatch).
  std::size_t index(const task& t) const {
    const std::size_t row = t.kind == task_kind::forward ? 0 : t.kind == task_kind::weight ? 2 : 1;
    return (row * config_.shape.chunks + t.chunk.value()) * config_.shape.microbatches +
           t.mb.value();
  }
  std::uint32_t position(task_kind kind, microbatch_id mb, chunk_id chunk) const {
    return position_[index({kind, mb, chunk})];
  }
  progress& progress_of(microbatch_id mb, chunk_id chunk) {
    return progress_[config_.shape.index(mb, chunk)];
  }
  bool on_last_virtual_stage(chunk_id chunk) const {
    return config_.shape.is_last(config_.shape.virtual_stage(config_.stage, chunk));
  }

  // ---- events

  void handle(const step_began& e) {
    RRFP_CHECK(running_.empty() && (aborted_ || left_.count() == 0),
               "a step begins only after the previous one has ended");
    aborted_ = false;
    step_ = e.step;
    waiting_.reset();
    slots_.reset(e.slot_bytes);
    std::fill(progress_.begin(), progress_.end(), progress{});
    std::fill(fold_next_.begin(), fold_next_.end(), 0);
    std::fill(backwards_of_.begin(), backwards_of_.end(), 0);
    forwards_launched_ = backwards_launched_ = oldest_unfinished_ = ready_count_ = 0;
    left_.fill();
    admission_.clear();
    forwards_.clear();
    others_.clear();
    hint_->reset();
  }

  void handle(const input_arrived& e) {
    RRFP_CHECK(e.rank.value() < config_.ranks, "the rank must belong to the stage");
    RRFP_CHECK(e.kind == task_kind::forward || e.kind == task_kind::backward,
               "an input is an activation or a gradient");
    auto& p = progress_of(e.mb, e.chunk);
    const bool forward = e.kind == task_kind::forward;
    RRFP_CHECK(forward || !on_last_virtual_stage(e.chunk),
               "the last virtual stage produces its own gradient");
    auto& ranks = forward ? p.forward_ranks : p.backward_ranks;
    const auto bit = rank_set{1} << e.rank.value();
    RRFP_CHECK((ranks & bit) == 0, "an input arrives once per step and rank");
    RRFP_CHECK(left_.count() != 0, "an input must arrive during a step");
    ranks |= bit;
    if (ranks != all_ranks_) return;
    if (forward)
      mark_ready(position(task_kind::forward, e.mb, e.chunk));
    else
      offer_backward(e.mb, e.chunk);
  }

  void handle(const task_finished& e) {
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [&](const auto& r) { return r.launched.seq == e.seq; });
    RRFP_CHECK(found != running_.end(), "a finished task must have been launched");
    const auto bit = rank_set{1} << e.rank.value();
    RRFP_CHECK(e.rank.value() < config_.ranks && (found->behind & bit) != 0,
               "each rank finishes a launch once");
    found->behind &= ~bit;
    if (found->behind != 0) return;
    RRFP_CHECK(found == running_.begin(), "launches must finish in the order of their numbers");
    const auto& folds = found->launched.folds;
    for (std::uint32_t i = 0; i < folds.count; ++i)
      slots_.activation_ends(microbatch_id{folds.first.value() + i});
    running_.erase(found);
  }

  void handle(const abort&) { aborted_ = true; }

  void handle(const decide&) {
    if (aborted_) return;
    while (running_.size() <= config_.lookahead) {
      const auto chosen = config_.mode == dispatch_mode::in_order ? next_in_order() : best_ready();
      if (chosen.position == none) break;
      start(chosen);
    }
    if (!running_.empty() || !actions_.empty()) return;
    hint_->waited();
    waiting_ = explain_wait();
    actions_.push_back(*waiting_);
  }

  // ---- readiness

  void mark_ready(std::uint32_t at) {
    const auto& t = tasks_[at];
    ++ready_count_;
    if (t.kind != task_kind::forward)
      others_.insert(at);
    else if (slots_.holds(t.mb))
      forwards_.insert(at);
    else
      admission_.insert(at);
  }

  bool is_ready(std::uint32_t at) const {
    return others_.test(at) || forwards_.test(at) || admission_.test(at);
  }

  void offer_backward(microbatch_id mb, chunk_id chunk) {
    const auto& p = progress_of(mb, chunk);
    if (p.backward_launched || !p.forward_launched) return;
    if (p.backward_ranks == all_ranks_ || on_last_virtual_stage(chunk))
      mark_ready(position(task_kind::backward, mb, chunk));
  }

  /// In ready mode, W waits for its turn to be folded. In-order mode may run W earlier; it then
  /// folds nothing until the gap before it is closed.
  void offer_weight(microbatch_id mb, chunk_id chunk) {
    const auto at = position(task_kind::weight, mb, chunk);
    const auto& p = progress_of(mb, chunk);
    if (at == none || !p.backward_launched || p.weight_due || is_ready(at)) return;
    if (config_.mode == dispatch_mode::in_order || fold_next_[chunk.value()] == mb.value())
      mark_ready(at);
  }

  // ---- arbitration

  struct candidate {
    std::uint32_t position = none;
    reason why;
  };

  bool run_ahead_bound() const {
    return config_.limit.run_ahead != 0 &&
           forwards_launched_ - backwards_launched_ >= config_.limit.run_ahead;
  }

  candidate next_in_order() const {
    const auto head = left_.first_in(0, lanes_[0].end);
    if (head == none || !is_ready(head)) return {};
    if (admission_.test(head) && !slots_.fits(tasks_[head].mb)) return {};
    return {head, {ready_count_ == 1 ? choice::only_choice : choice::hint_head, 0}};
  }

  candidate best_ready() const {
    if (ready_count_ == 0) return {};
    bool bound_before = false;
    for (const auto lane_number : complete_order()) {
      const auto lane = lanes_[lane_number];
      if (lane.begin == lane.end) continue;
      std::uint32_t blocked = none;
      const auto best = std::min({others_.first_in(lane.begin, lane.end),
                                  best_forward(lane, blocked), best_admission(lane, blocked)});
      if (best == none) {
        bound_before = bound_before || blocked != none;
        continue;
      }
      const auto skipped = left_.count(lane.begin, best);
      const auto why = ready_count_ == 1                ? choice::only_choice
                       : bound_before || blocked < best ? choice::memory_bound
                       : skipped == 0                   ? choice::hint_head
                                                        : choice::skipped_not_ready;
      return {best, {why, skipped}};
    }
    return {};
  }

  std::uint32_t best_forward(lane_range lane, std::uint32_t& blocked) const {
    const auto first = forwards_.first_in(lane.begin, lane.end);
    if (first == none || !run_ahead_bound()) return first;
    auto best = none;
    for (std::uint32_t c = 0; c < config_.shape.chunks; ++c) {
      const auto at = position(task_kind::forward, microbatch_id{oldest_unfinished_}, chunk_id{c});
      if (at >= lane.begin && at < lane.end && forwards_.test(at)) best = std::min(best, at);
    }
    if (best != first) blocked = std::min(blocked, first);
    return best;
  }

  /// The best-ranked microbatch that waits for a slot, or else the oldest one. If neither may take
  /// a slot, trying more of them is not worth the time.
  std::uint32_t best_admission(lane_range lane, std::uint32_t& blocked) const {
    const auto first = admission_.first_in(lane.begin, lane.end);
    if (first == none) return none;
    const bool bound = run_ahead_bound();
    const auto allowed = [&](std::uint32_t at) {
      const auto mb = tasks_[at].mb;
      return (!bound || mb.value() == oldest_unfinished_) && slots_.may_take(mb);
    };
    if (allowed(first)) return first;
    blocked = std::min(blocked, first);
    const microbatch_id oldest{bound ? oldest_unfinished_ : slots_.oldest_waiting()};
    if (oldest.value() == config_.shape.microbatches) return none;
    const auto at = position(task_kind::forward, oldest, tasks_[first].chunk);
    const bool here = at >= lane.begin && at < lane.end && admission_.test(at);
    return here && allowed(at) ? at : none;
  }

  /// The policy's lanes, then the lanes it left out, so that no hint can leave tasks unlaunched.
  std::array<std::uint8_t, lanes_max> complete_order() const {
    const auto named = hint_->order();
    std::array<std::uint8_t, lanes_max> order{};
    std::uint32_t used = 0;
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < named.count; ++i) {
      RRFP_CHECK(named.lane[i] < lanes_max && (used >> named.lane[i] & 1) == 0,
                 "a lane order names each lane at most once");
      used |= 1U << named.lane[i];
      order[count++] = named.lane[i];
    }
    for (std::uint8_t lane = 0; lane < lanes_max; ++lane)
      if ((used >> lane & 1) == 0) order[count++] = lane;
    return order;
  }

  void start(const candidate& chosen) {
    const auto t = tasks_[chosen.position];
    auto& p = progress_of(t.mb, t.chunk);
    launch l{launch_seq{next_seq_++}, t, chosen.why, {t.mb, 0}};
    left_.erase(chosen.position);
    --ready_count_;
    if (t.kind == task_kind::forward) {
      start_forward(chosen.position, t, p);
    } else {
      others_.erase(chosen.position);
      if (is_backward(t.kind)) {
        p.backward_launched = true;
        ++backwards_launched_;
        if (++backwards_of_[t.mb.value()] == config_.shape.chunks) advance_oldest_unfinished();
      }
      if (has_weight(t.kind)) l.folds = fold(t, p);
      offer_weight(t.mb, t.chunk);
    }
    hint_->launched(t);
    waiting_.reset();
    running_.push_back({l, all_ranks_});
    actions_.emplace_back(l);
  }

  void start_forward(std::uint32_t at, const task& t, progress& p) {
    forwards_.erase(at);
    if (admission_.test(at)) {
      admission_.erase(at);
      slots_.take(t.mb);
      // Inputs of the other chunks may have arrived first; those F no longer need a slot.
      for (std::uint32_t c = 0; c < config_.shape.chunks; ++c) {
        const auto other = position(task_kind::forward, t.mb, chunk_id{c});
        if (!admission_.test(other)) continue;
        admission_.erase(other);
        forwards_.insert(other);
      }
    }
    slots_.activation_begins();
    p.forward_launched = true;
    ++forwards_launched_;
    offer_backward(t.mb, t.chunk);
  }

  fold_range fold(const task& t, progress& p) {
    p.weight_due = true;
    auto& next = fold_next_[t.chunk.value()];
    if (next != t.mb.value()) return {t.mb, 0};
    const microbatch_id first{next};
    while (next < config_.shape.microbatches &&
           progress_of(microbatch_id{next}, t.chunk).weight_due)
      ++next;
    if (next < config_.shape.microbatches) offer_weight(microbatch_id{next}, t.chunk);
    return {first, next - first.value()};
  }

  void advance_oldest_unfinished() {
    while (oldest_unfinished_ < config_.shape.microbatches &&
           backwards_of_[oldest_unfinished_] == config_.shape.chunks)
      ++oldest_unfinished_;
  }

  wait explain_wait() const {
    if (left_.count() == 0) return {wait_cause::complete, {}};
    if (config_.mode == dispatch_mode::in_order) {
      const auto head = left_.first_in(0, lanes_[0].end);
      const auto why = is_ready(head)      ? wait_cause::memory
                       : ready_count_ != 0 ? wait_cause::in_order
                                           : wait_cause::input;
      return {why, tasks_[head]};
    }
    for (const auto lane_number : complete_order()) {
      const auto lane = lanes_[lane_number];
      const auto head = ready_count_ != 0 ? std::min(admission_.first_in(lane.begin, lane.end),
                                                     forwards_.first_in(lane.begin, lane.end))
                                          : left_.first_in(lane.begin, lane.end);
      if (head == none) continue;
      if (ready_count_ != 0) return {wait_cause::memory, tasks_[head]};
      return {wait_cause::input, awaited_task(tasks_[head])};
    }
    RRFP_CHECK(false, "every remaining task must be in a lane");
  }

  /// The limit that stops the head of a wait for memory.
  memory_bound bound() const {
    if (!waiting_ || waiting_->why != wait_cause::memory) return memory_bound::none;
    const auto mb = waiting_->head.mb;
    if (config_.mode == dispatch_mode::in_order) return slots_.bound_on_fitting(mb);
    if (run_ahead_bound() && mb.value() != oldest_unfinished_) return memory_bound::run_ahead;
    return slots_.holds(mb) ? memory_bound::none : slots_.bound_on_taking(mb);
  }

  /// The end of the chain of dependencies of `t` within this stage: the task whose input another
  /// stage has to send.
  task awaited_task(task t) const {
    for (;;) {
      const auto before = own_task_before(t);
      if (!before) return t;
      t = *before;
    }
  }

  /// The unlaunched task of this stage that must be launched before `t`, if there is one.
  std::optional<task> own_task_before(const task& t) const {
    const auto left = [&](task_kind kind, microbatch_id mb, chunk_id chunk) -> std::optional<task> {
      const auto at = position(kind, mb, chunk);
      if (!left_.test(at)) return std::nullopt;
      return tasks_[at];
    };
    if (t.kind == task_kind::weight) {
      const microbatch_id folded{fold_next_[t.chunk.value()]};
      const auto backward = left(task_kind::backward, t.mb, t.chunk);
      if (backward || folded >= t.mb) return backward;
      return left(task_kind::backward, folded, t.chunk);
    }
    if (is_backward(t.kind))
      if (const auto forward = left(task_kind::forward, t.mb, t.chunk)) return forward;
    const auto from = config_.shape.producer_of(config_.stage, t);
    if (!from || from->stage != config_.stage) return std::nullopt;
    return left(from->what.kind, t.mb, from->what.chunk);
  }

  // ---- the frozen ranking
  std::vector<task> tasks_;              ///< by position
  std::vector<std::uint32_t> position_;  ///< by index()
  std::array<lane_range, lanes_max> lanes_{};
  rank_set all_ranks_ = 0;

  // ---- the step
  step_id step_;
  /// The last decision, if it was to wait.
  std::optional<wait> waiting_;
  std::vector<progress> progress_;
  std::vector<std::uint32_t> fold_next_;     ///< by chunk: the next microbatch to fold
  std::vector<std::uint32_t> backwards_of_;  ///< by microbatch: backwards launched
  /// Ready tasks: F that still need a slot; F that do not; B, W and BW.
  priority_bitmap admission_;
  priority_bitmap forwards_;
  priority_bitmap others_;
  std::uint32_t forwards_launched_ = 0;
  std::uint32_t backwards_launched_ = 0;
  std::uint32_t oldest_unfinished_ = 0;
  std::uint64_t next_seq_ = 0;
  bool aborted_ = false;
  std::vector<action> actions_;
};

stage_core::stage_core(stage_config config, std::unique_ptr<policy> hint)
    : impl_(std::make_unique<impl>(std::move(config), std::move(hint))) {}
stage_core::stage_core(stage_core&&) noexcept = default;
stage_core& stage_core::operator=(stage_core&&) noexcept = default;
stage_core::~stage_core() = default;

std::span<const action> stage_core::on(const event& e) { return impl_->on(e); }
const stage_config& stage_core::config() const { return impl_->config_; }
const policy& stage_core::hint() const { return *impl_->hint_; }
const memory_use& stage_core::memory() const { return impl_->slots_.use(); }
task_kind stage_core::backward_of(microbatch_id mb, chunk_id chunk) const {
  return impl_->hint_->backward_of(mb, chunk);
}
std::uint32_t stage_core::outstanding() const {
  return static_cast<std::uint32_t>(impl_->running_.size());
}
std::uint32_t stage_core::remaining() const { return impl_->left_.count(); }
std::uint32_t stage_core::ready() const { return impl_->ready_count_; }
bool stage_core::step_complete() const { return remaining() == 0 && outstanding() == 0; }
stage_snapshot stage_core::snapshot() const { return impl_->snapshot(); }

}  // namespace rrfp
