#include <rrfp/core/stage_core.hpp>

#include <algorithm>
#include <array>
#include <optional>

#include <rrfp/core/stage_snapshot.hpp>

#include "priority_bitmap.hpp"
#include "ranking.hpp"

namespace rrfp {

namespace {

constexpr auto none = ranking::none;

/// The state of one (microbatch, chunk).
struct progress {
  rank_set forward_ranks = 0;   ///< the input of F has arrived there
  rank_set backward_ranks = 0;  ///< the gradient has arrived there
  bool forward_early = false;   ///< F has run early
  bool forward_launched = false;
  bool backward_launched = false;
  bool weight_due = false;  ///< a W or BW was launched, folded or not
};

/// The ready tasks of a stage, by position in the ranking.
struct ready_sets {
  explicit ready_sets(std::uint32_t size = 0)
      : admission(size), forwards(size), again(size), due_again(size), others(size) {}

  void clear() {
    count = 0;
    for (auto* set : {&admission, &forwards, &again, &due_again, &others}) set->clear();
  }
  bool test(std::uint32_t at) const {
    return others.test(at) || forwards.test(at) || admission.test(at) || again.test(at) ||
           due_again.test(at);
  }

  std::uint32_t count = 0;    ///< of all that follow
  priority_bitmap admission;  ///< F that still need a slot
  priority_bitmap forwards;   ///< F that do not
  priority_bitmap again;      ///< F that ran early and have no slot, before their gradient arrives
  priority_bitmap due_again;  ///< the same after it has arrived
  priority_bitmap others;     ///< B, W and BW
};

}  // namespace

class stage_core::impl {
 public:
  impl(stage_config config, policy_factory make_policy)
      : config_(std::move(config)), make_policy_(std::move(make_policy)), shape_(config_.shape) {
    RRFP_CHECK(config_.shape.validate().ok(), "the shape must be valid");
    RRFP_CHECK(config_.stage.value() < config_.shape.stages, "the stage must belong to the shape");
    RRFP_CHECK(config_.ranks >= 1 && config_.ranks <= 64, "ranks must be 1 to 64");
    RRFP_CHECK(config_.early_forwards == 0 || config_.mode == dispatch_mode::ready,
               "early_forwards requires mode ready");
    RRFP_CHECK(config_.early_forwards == 0 || config_.limit.activations == 0,
               "early_forwards cannot be combined with an activation limit");
    RRFP_CHECK(config_.early_forwards == 0 || !config_.forwards_in_order,
               "an F that changes buffers runs once");
    RRFP_CHECK(config_.limit.run_ahead == 0 || is_bound_by_run_ahead_alone(),
               "run_ahead requires mode ready and excludes all other limits on forwards");
    all_ranks_ = all_ranks(config_.ranks);
    actions_.reserve(config_.lookahead + 2);
    fold_next_.resize(shape_.chunks);
    piece_next_.resize(shape_.chunks);
    make_tables(shape_);
  }

  stage_snapshot snapshot() const {
    const auto microbatches = shape_.microbatches;
    stage_snapshot s{.step = step_,
                     .microbatches = microbatches,
                     .running = running_,
                     .waits = waiting_.has_value(),
                     .waiting = waiting_.value_or(wait{}),
                     .bound = bound(),
                     .memory = slots_.use(),
                     .holders = {},
                     .ready = ready_.count,
                     .remaining = left_.count(),
                     .progress = {}};
    for (microbatch_id mb; mb.value() < microbatches; mb = microbatch_id{mb.value() + 1})
      if (slots_.holds(mb)) s.holders.push_back(mb);
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      const auto& p = progress_[i];
      s.progress.push_back({p.forward_ranks, p.backward_ranks, p.forward_early, p.forward_launched,
                            p.backward_launched, i % microbatches < fold_next_[i / microbatches]});
    }
    for (const auto& r : running_) {
      const auto& [seq, t, why, folds, piece, pass] = r.launched;
      auto& done = s.progress[shape_.index(t.mb, t.chunk)];
      if (pass == forward_pass::early) done.forward_early = false;
      if (t.kind == task_kind::forward) done.forward_done = false;
      if (is_backward(t.kind)) done.backward_done = false;
      for (auto mb = folds.first.value(); mb < folds.first.value() + folds.count; ++mb)
        s.progress[shape_.index(microbatch_id{mb}, t.chunk)].weight_done = false;
    }
    return s;
  }

  std::uint32_t position(task_kind kind, microbatch_id mb, chunk_id chunk) const {
    return ranking_.position(kind, mb, chunk);
  }
  progress& progress_of(microbatch_id mb, chunk_id chunk) {
    return progress_[shape_.index(mb, chunk)];
  }
  bool on_last_virtual_stage(chunk_id chunk) const {
    return config_.shape.is_last(config_.shape.virtual_stage(config_.stage, chunk));
  }

  // ---- events

  /// What has an entry for each task or microbatch of a step.
  void make_tables(const pipeline_shape& shape) {
    ranking_ = ranking{shape, make_policy_(shape, config_.stage)};
    RRFP_CHECK(config_.mode == dispatch_mode::ready || ranking_.hint().lanes() == 1,
               "in-order dispatch needs a policy with one lane");
    shape_ = shape;
    slots_ = {config_.limit, shape.microbatches, shape.chunks};
    left_ = counted_bitmap{ranking_.size()};
    progress_.resize(std::size_t{shape.microbatches} * shape.chunks);
    backwards_of_.resize(shape.microbatches);
    partly_here_ = priority_bitmap{ranking_.size()};
    ready_ = ready_sets{ranking_.size()};
  }

  void handle(const step_began& e) {
    RRFP_CHECK(running_.empty() && (aborted_ || left_.count() == 0),
               "a step begins only after the previous one has ended");
    auto shape = config_.shape;
    shape.microbatches = e.microbatches.value_or(shape.microbatches);
    is_empty_ = shape.microbatches == 0;
    if (!is_empty_ && (shape != shape_ || config_.renews_policy)) make_tables(shape);
    aborted_ = false;
    step_ = e.step;
    waiting_.reset();
    slots_.reset(is_empty_ ? std::span<const std::uint64_t>{} : e.slot_bytes);
    std::fill(progress_.begin(), progress_.end(), progress{});
    std::fill(fold_next_.begin(), fold_next_.end(), 0);
    std::fill(piece_next_.begin(), piece_next_.end(), 0);
    std::fill(backwards_of_.begin(), backwards_of_.end(), 0);
    weight_pieces_ = weight_pieces_of(e);
    forwards_launched_ = backwards_launched_ = early_ = oldest_unfinished_ = 0;
    if (is_empty_)
      left_ = counted_bitmap{ranking_.size()};
    else
      left_.fill();
    partly_here_.clear();
    ready_.clear();
    ranking_.hint().reset();
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
    const auto at = position(e.kind, e.mb, e.chunk);
    if (ranks != all_ranks_)
      partly_here_.insert(at);
    else if (config_.ranks > 1)
      partly_here_.erase(at);
    if (ranks != all_ranks_) return;
    if (forward)
      offer_forward(e.mb, e.chunk);
    else
      offer_backward(e.mb, e.chunk);
  }

  void handle(const task_finished& e) {
    const auto found =
        std::ranges::find(running_, e.seq, [](const auto& r) { return r.launched.seq; });
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
      const auto chosen = best();
      if (chosen.position == none) break;
      start(chosen);
    }
    if (!running_.empty() || !actions_.empty()) return;
    ranking_.hint().waited();
    waiting_ = explain_wait();
    actions_.assign(1, *waiting_);
  }

  // ---- readiness

  void mark_ready(std::uint32_t at) {
    if (ready_.test(at)) return;
    const auto& t = ranking_.at(at);
    ++ready_.count;
    if (t.kind != task_kind::forward)
      ready_.others.insert(at);
    else if (slots_.must_take(t.mb))
      ready_.admission.insert(at);
    else
      ready_.forwards.insert(at);
  }

  /// In order of the microbatches if the stage demands it. In-order mode obeys its sequence.
  void offer_forward(microbatch_id mb, chunk_id chunk) {
    const bool is_its_turn = !config_.forwards_in_order ||
                             config_.mode == dispatch_mode::in_order || mb.value() == 0 ||
                             progress_of(microbatch_id{mb.value() - 1}, chunk).forward_launched;
    if (progress_of(mb, chunk).forward_ranks == all_ranks_ && is_its_turn)
      mark_ready(position(task_kind::forward, mb, chunk));
  }

  void offer_backward(microbatch_id mb, chunk_id chunk) {
    const auto& p = progress_of(mb, chunk);
    const bool here = on_last_virtual_stage(chunk) || p.backward_ranks == all_ranks_;
    if (!here || p.backward_launched) return;
    if (p.forward_launched) return mark_ready(position(task_kind::backward, mb, chunk));
    const auto forward = position(task_kind::forward, mb, chunk);
    if (!ready_.again.test(forward)) return;
    ready_.again.erase(forward);
    ready_.due_again.insert(forward);
  }

  /// In ready mode, W waits for its turn to be folded. In-order mode may run W earlier; it then
  /// folds nothing until the gap before it is closed.
  void offer_weight(microbatch_id mb, chunk_id chunk) {
    const auto at = position(task_kind::weight, mb, chunk);
    const auto& p = progress_of(mb, chunk);
    if (at == none || !p.backward_launched || p.weight_due) return;
    if (config_.mode == dispatch_mode::in_order || fold_next_[chunk.value()] == mb.value())
      mark_ready(at);
  }

  // ---- arbitration

  struct candidate {
    std::uint32_t position = none;
    reason why;
    bool is_early = false;
  };

  bool is_bound_by_run_ahead_alone() const {
    const memory_limit alone{.run_ahead = config_.limit.run_ahead};
    return config_.mode == dispatch_mode::ready && config_.limit == alone &&
           config_.early_forwards == 0 && !config_.forwards_in_order;
  }

  bool under_back_pressure() const {
    return config_.limit.run_ahead != 0 &&
           forwards_launched_ - backwards_launched_ >= config_.limit.run_ahead;
  }

  candidate next_in_order() const {
    const auto head = left_.first_in(0, ranking_.size());
    if (head == none || !ready_.test(head)) return {};
    if (ready_.admission.test(head) && !slots_.fits(ranking_.at(head).mb)) return {};
    return {head, {ready_.count == 1 ? choice::only_choice : choice::hint_head, 0}};
  }

  /// What the hint may know of this moment.
  stage_view view() const {
    const lane_range all{0, ranking_.size()};
    const auto free = first_of(ready_.forwards, all);
    auto blocked = none;
    if (under_back_pressure()) {
      const auto next = next_under_back_pressure();
      const bool is_forward = next != none && ranking_.at(next).kind == task_kind::forward;
      return {.forward_blocked =
                  !is_forward && std::min(free, first_of(ready_.admission, all)) != none};
    }
    return {.forward_blocked =
                free == none && best_admission(all, blocked) == none && blocked != none};
  }

  candidate best() const {
    if (config_.mode == dispatch_mode::in_order) return next_in_order();
    if (ready_.count == 0) return {};
    bool bound_before = false;
    for (const auto number : ranking_.order(view())) {
      const auto lane = ranking_.lane(number);
      if (lane.begin == lane.end) continue;
      auto blocked = none;  // the best-ranked task that memory does not allow
      const auto at =
          under_back_pressure()
              ? best_under_back_pressure(lane, blocked)
              : std::min({first_of(ready_.others, lane), first_of(ready_.forwards, lane),
                          best_admission(lane, blocked)});
      if (at == none) {
        bound_before = bound_before || blocked != none;
        continue;
      }
      return {at, reason_for(at, lane, bound_before || blocked < at)};
    }
    if (config_.early_forwards == 0 || !running_.empty()) return {};
    return best_of_spare_time();
  }

  /// If nothing else can run: the second pass of an F whose gradient has not arrived. Else an F
  /// that waits for a slot runs early.
  candidate best_of_spare_time() const {
    for (const auto number : ranking_.order(view())) {
      const auto lane = ranking_.lane(number);
      auto blocked = none;
      const auto at = best_taker(ready_.again, lane, blocked);
      if (at != none) return {at, reason_for(at, lane, true)};
    }
    if (early_ >= config_.early_forwards) return {};
    for (const auto number : ranking_.order(view())) {
      const auto lane = ranking_.lane(number);
      for (auto at = ready_.admission.first_in(lane.begin, lane.end); at != none;
           at = ready_.admission.first_in(at + 1, lane.end))
        if (!on_last_virtual_stage(ranking_.at(at).chunk))
          return {at, reason_for(at, lane, true), true};
    }
    return {};
  }

  static std::uint32_t first_of(const priority_bitmap& ready, lane_range range) {
    return ready.first_in(range.begin, range.end);
  }

  /// The paper's rule: with one chunk, no F. With several, an F may be what a B of this stage waits
  /// for, so the oldest unfinished microbatch takes its next step, and no other one does. W fills
  /// the time.
  std::uint32_t best_under_back_pressure(lane_range range, std::uint32_t& blocked) const {
    const auto within = [&](std::uint32_t at) { return range.contains(at) ? at : none; };
    const auto other = first_of(ready_.others, range);
    auto best = other;
    if (config_.shape.chunks > 1)
      best = std::min(within(next_under_back_pressure()),
                      best_of_chunks([&](chunk_id c) { return within(due_weight(c)); }));
    const auto first =
        std::min({other, first_of(ready_.forwards, range), first_of(ready_.admission, range)});
    if (first < best) blocked = std::min(blocked, first);
    return best;
  }

  /// With several chunks: the next task of the oldest unfinished microbatch, if it is ready.
  std::uint32_t next_under_back_pressure() const {
    if (config_.shape.chunks == 1) return none;
    return best_of_chunks([&](chunk_id c) { return of_oldest_unfinished(c); });
  }

  reason reason_for(std::uint32_t at, lane_range lane, bool bound_before) const {
    const auto skipped = left_.count(lane.begin, at);
    return {ready_.count == 1 ? choice::only_choice
            : bound_before    ? choice::memory_bound
            : skipped == 0    ? choice::hint_head
                              : choice::skipped_not_ready,
            skipped};
  }

  template <class Best>
  std::uint32_t best_of_chunks(Best best_of) const {
    auto best = none;
    for (std::uint32_t c = 0; c < config_.shape.chunks; ++c)
      best = std::min(best, best_of(chunk_id{c}));
    return best;
  }

  std::uint32_t of_oldest_unfinished(chunk_id chunk) const {
    const microbatch_id oldest{oldest_unfinished_};
    if (oldest.value() == shape_.microbatches) return none;
    const auto forward = position(task_kind::forward, oldest, chunk);
    if (ready_.forwards.test(forward)) return forward;
    if (ready_.admission.test(forward)) return slots_.may_take(oldest) ? forward : none;
    const auto backward = position(task_kind::backward, oldest, chunk);
    return ready_.others.test(backward) ? backward : none;
  }

  std::uint32_t due_weight(chunk_id chunk) const {
    const microbatch_id due{fold_next_[chunk.value()]};
    if (due.value() == shape_.microbatches) return none;
    const auto at = position(task_kind::weight, due, chunk);
    return at != none && ready_.others.test(at) ? at : none;
  }

  std::uint32_t best_admission(lane_range lane, std::uint32_t& blocked) const {
    const auto best = best_taker(ready_.admission, lane, blocked);
    return early_ == 0 ? best : std::min(best, best_taker(ready_.due_again, lane, blocked));
  }

  /// Returns the F in `waiting` of the best-ranked microbatch, or else of the oldest one. If
  /// neither may take a slot, trying more of them is not worth the time.
  std::uint32_t best_taker(const priority_bitmap& waiting, lane_range lane,
                           std::uint32_t& blocked) const {
    const auto first = first_of(waiting, lane);
    if (first == none) return none;
    const auto allowed = [&](std::uint32_t at) {
      const auto mb = ranking_.at(at).mb;
      return (&waiting != &ready_.admission || leaves_slots_to_early(mb)) && slots_.may_take(mb);
    };
    if (allowed(first)) return first;
    blocked = std::min(blocked, first);
    const microbatch_id oldest{slots_.oldest_waiting()};
    if (oldest.value() == shape_.microbatches) return none;
    return best_of_chunks([&](chunk_id c) {
      const auto at = position(task_kind::forward, oldest, c);
      return lane.contains(at) && waiting.test(at) && allowed(at) ? at : none;
    });
  }

  /// The next free slots are for F that ran early: until then their first pass has only cost time.
  bool leaves_slots_to_early(microbatch_id mb) const {
    return early_ == 0 || mb.value() == slots_.oldest_waiting() ||
           (config_.limit.bytes == 0 && slots_.use().slots + early_ < config_.limit.slots);
  }

  void start(const candidate& chosen) {
    const auto t = ranking_.at(chosen.position);
    auto& p = progress_of(t.mb, t.chunk);
    launch l{launch_seq{next_seq_++}, t, chosen.why, {t.mb, 0}, piece_of(t)};
    if (chosen.is_early)
      l.pass = forward_pass::early;
    else if (t.kind == task_kind::forward && p.forward_early)
      l.pass = forward_pass::again;
    if (l.ends_task()) {
      left_.erase(chosen.position);
      --ready_.count;
    }
    if (t.kind == task_kind::forward) {
      if (l.ends_task())
        start_forward(chosen.position, t, p);
      else
        start_early(chosen.position, p);
    } else if (l.piece.is_last()) {
      ready_.others.erase(chosen.position);
      if (is_backward(t.kind)) {
        p.backward_launched = true;
        ++backwards_launched_;
        if (++backwards_of_[t.mb.value()] == config_.shape.chunks) advance_oldest_unfinished();
      }
      if (has_weight(t.kind)) l.folds = fold(t, p);
      offer_weight(t.mb, t.chunk);
    }
    // To the hint, an F has run when its output is sent.
    if (l.pass != forward_pass::again) ranking_.hint().launched(t);
    waiting_.reset();
    running_.push_back({l, all_ranks_});
    actions_.emplace_back(l);
  }

  std::uint32_t weight_pieces_of(const step_began& e) const {
    if (config_.mode == dispatch_mode::in_order) return 1;
    if (e.weight_pieces != 0) return e.weight_pieces;
    return config_.weight_pieces != 0 ? config_.weight_pieces : ranking_.hint().weight_pieces();
  }

  /// The next piece of `t`, which is launched now.
  task_piece piece_of(const task& t) {
    if (t.kind != task_kind::weight || weight_pieces_ == 1) return {};
    auto& next = piece_next_[t.chunk.value()];
    RRFP_CHECK(weight_pieces_ > next, "a W has at least one piece");
    const task_piece piece{next, weight_pieces_};
    next = piece.is_last() ? 0 : next + 1;
    return piece;
  }

  void start_early(std::uint32_t at, progress& p) {
    ready_.admission.erase(at);
    ready_.again.insert(at);
    p.forward_early = true;
    ++early_;
  }

  void start_forward(std::uint32_t at, const task& t, progress& p) {
    const bool takes_slot = slots_.must_take(t.mb);
    if (takes_slot) slots_.take(t.mb);
    const std::array waiting{&ready_.admission, &ready_.again, &ready_.due_again};
    ready_.forwards.erase(at);
    for (auto* set : waiting) set->erase(at);
    if (takes_slot && !slots_.must_take(t.mb)) {
      // Inputs of the other chunks may have arrived first; those F no longer need a slot.
      for (std::uint32_t c = 0; c < config_.shape.chunks; ++c) {
        const auto other = position(task_kind::forward, t.mb, chunk_id{c});
        for (auto* set : waiting) {
          if (!set->test(other)) continue;
          set->erase(other);
          ready_.forwards.insert(other);
        }
      }
    }
    slots_.activation_begins();
    p.forward_launched = true;
    ++forwards_launched_;
    if (p.forward_early) --early_;
    offer_backward(t.mb, t.chunk);
    if (config_.forwards_in_order && config_.mode == dispatch_mode::ready &&
        t.mb.value() + 1 < shape_.microbatches)
      offer_forward(microbatch_id{t.mb.value() + 1}, t.chunk);
  }

  fold_range fold(const task& t, progress& p) {
    p.weight_due = true;
    auto& next = fold_next_[t.chunk.value()];
    if (next != t.mb.value()) return {t.mb, 0};
    const microbatch_id first{next};
    while (next < shape_.microbatches && progress_of(microbatch_id{next}, t.chunk).weight_due)
      ++next;
    if (next < shape_.microbatches) offer_weight(microbatch_id{next}, t.chunk);
    return {first, next - first.value()};
  }

  void advance_oldest_unfinished() {
    while (oldest_unfinished_ < shape_.microbatches &&
           backwards_of_[oldest_unfinished_] == config_.shape.chunks)
      ++oldest_unfinished_;
  }

  wait explain_wait() const {
    if (left_.count() == 0) return {wait_cause::complete, {}};
    if (config_.mode == dispatch_mode::in_order) {
      const auto head = left_.first_in(0, ranking_.size());
      const auto why = ready_.test(head)         ? wait_cause::memory
                       : ready_.count != 0       ? wait_cause::in_order
                       : partly_here_.test(head) ? wait_cause::ranks
                                                 : wait_cause::input;
      return {why, ranking_.at(head)};
    }
    if (ready_.count == 0)
      if (const auto head = partly_here_.first_in(0, ranking_.size()); head != none)
        return {wait_cause::ranks, ranking_.at(head)};
    for (const auto number : ranking_.order(view())) {
      const auto lane = ranking_.lane(number);
      const auto first = [&](const priority_bitmap& of) { return first_of(of, lane); };
      const auto head =
          ready_.count == 0
              ? left_.first_in(lane.begin, lane.end)
              : std::min({first(ready_.others), first(ready_.admission), first(ready_.forwards),
                          first(ready_.again), first(ready_.due_again)});
      if (head == none) continue;
      if (ready_.count != 0) return {wait_cause::memory, ranking_.at(head)};
      return {wait_cause::input, awaited_task(ranking_.at(head))};
    }
    RRFP_CHECK(false, "every remaining task must be in a lane");
  }

  /// The limit that stops the head of a wait for memory.
  memory_bound bound() const {
    if (!waiting_ || waiting_->why != wait_cause::memory) return memory_bound::none;
    const auto mb = waiting_->head.mb;
    if (config_.mode == dispatch_mode::in_order) return slots_.bound_on_fitting(mb);
    if (under_back_pressure()) return memory_bound::run_ahead;
    return slots_.must_take(mb) ? slots_.bound_on_taking(mb) : memory_bound::none;
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
      return ranking_.at(at);
    };
    if (t.kind == task_kind::weight) {
      const microbatch_id folded{fold_next_[t.chunk.value()]};
      const auto backward = left(task_kind::backward, t.mb, t.chunk);
      if (backward || folded >= t.mb) return backward;
      return left(task_kind::backward, folded, t.chunk);
    }
    if (is_backward(t.kind))
      if (const auto forward = left(task_kind::forward, t.mb, t.chunk)) return forward;
    if (t.kind == task_kind::forward && config_.forwards_in_order && t.mb.value() != 0)
      if (const auto before = left(t.kind, microbatch_id{t.mb.value() - 1}, t.chunk)) return before;
    const auto from = config_.shape.producer_of(config_.stage, t);
    if (!from || from->stage != config_.stage) return std::nullopt;
    return left(from->what.kind, t.mb, from->what.chunk);
  }

  const stage_config config_;
  const policy_factory make_policy_;
  rank_set all_ranks_ = 0;
  std::uint64_t next_seq_ = 0;
  std::vector<action> actions_;

  // ---- the step
  step_id step_;
  pipeline_shape shape_;   ///< of the last step that had microbatches
  bool is_empty_ = false;  ///< without microbatches
  bool aborted_ = false;
  ranking ranking_;
  memory_slots slots_;
  counted_bitmap left_;
  std::vector<running_launch> running_;
  /// The last decision, if it was to wait.
  std::optional<wait> waiting_;
  std::vector<progress> progress_;
  std::vector<std::uint32_t> fold_next_;     ///< by chunk: the next microbatch to fold
  std::vector<std::uint32_t> piece_next_;    ///< by chunk: the next piece of the W that is due
  std::vector<std::uint32_t> backwards_of_;  ///< by microbatch: backwards launched
  /// Tasks whose input is on some ranks, and not on others.
  priority_bitmap partly_here_;
  ready_sets ready_;
  std::uint32_t weight_pieces_ = 1;
  std::uint32_t forwards_launched_ = 0;
  std::uint32_t backwards_launched_ = 0;
  std::uint32_t early_ = 0;  ///< F that have run early and not again
  std::uint32_t oldest_unfinished_ = 0;
};

stage_core::stage_core(stage_config config, policy_factory make_policy)
    : impl_(std::make_unique<impl>(std::move(config), std::move(make_policy))) {}
stage_core::stage_core(stage_core&&) noexcept = default;
stage_core& stage_core::operator=(stage_core&&) noexcept = default;
stage_core::~stage_core() = default;

std::span<const action> stage_core::on(const event& e) {
  impl_->actions_.clear();
  std::visit([this](const auto& x) { impl_->handle(x); }, e);
  return impl_->actions_;
}
const stage_config& stage_core::config() const { return impl_->config_; }
std::uint32_t stage_core::microbatches() const {
  return impl_->is_empty_ ? 0 : impl_->shape_.microbatches;
}
const policy& stage_core::hint() const { return impl_->ranking_.hint(); }
const memory_use& stage_core::memory() const { return impl_->slots_.use(); }
std::uint32_t stage_core::outstanding() const {
  return static_cast<std::uint32_t>(impl_->running_.size());
}
std::uint32_t stage_core::remaining() const { return impl_->left_.count(); }
std::uint32_t stage_core::ready() const { return impl_->ready_.count; }
std::optional<task> stage_core::next() const {
  if (impl_->aborted_ || impl_->running_.size() > config().lookahead) return std::nullopt;
  const auto chosen = impl_->best().position;
  return chosen == none ? std::nullopt : std::optional{impl_->ranking_.at(chosen)};
}
bool stage_core::step_complete() const { return remaining() == 0 && outstanding() == 0; }
stage_snapshot stage_core::snapshot() const { return impl_->snapshot(); }

stage_core make_stage_core(stage_config config, const dispatch_rule& rule) {
  config.mode = rule.mode;
  config.weight_pieces = rule.weight_pieces;
  config.early_forwards = config.forwards_in_order ? 0 : rule.early_forwards;
  config.renews_policy = rule.renews_policy;
  return stage_core{config, rule.make_policy};
}

}  // namespace rrfp
