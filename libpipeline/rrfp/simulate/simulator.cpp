#include <rrfp/simulate/simulator.hpp>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include <rrfp/base/enum_names.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/core/sequence.hpp>
#include <rrfp/core/stage_snapshot.hpp>

#include "event_queue.hpp"
#include "lower_bound.hpp"

namespace rrfp::simulate {

namespace {

/// The device of one rank of a stage.
struct rank_state {
  /// Launches that the device has not finished; the first one is running.
  std::vector<launch> queue;
  /// When it had finished all launches while other ranks had not; -1: it runs, or none is behind.
  nanoseconds ahead_since = -1;
  nanoseconds busy = 0;
  nanoseconds behind = 0;

  // Blocking transport.
  /// The ends posted for each input, by input_index: see simulation::post_end().
  std::vector<std::uint8_t> posted;
  std::size_t ran = 0;  ///< tasks of the step
  bool sending = false;
  nanoseconds sends_since = 0;
  nanoseconds blocked = 0;
};

/// A stage: its core, and why its devices are idle.
struct stage_state {
  explicit stage_state(stage_core c) : core(std::move(c)) {}

  stage_core core;
  bool notified = false;
  /// Launches that some rank has begun and some rank has not finished, in order.
  struct span {
    launch_seq seq;
    nanoseconds began = 0;   ///< on the first rank
    std::uint32_t left = 0;  ///< ranks that have not finished it
  };
  std::vector<span> running;

  bool is_idle = false;
  bool ran_in_step = false;
  wait why;
  nanoseconds idle_since = 0;

  sequence obeyed;  ///< with blocking transport
};

class simulation {
 public:
  simulation(const plan& p, const cost_model& costs, observer* watcher,
             std::vector<stage_core> cores)
      : plan_(p), costs_(costs), watcher_(watcher), shape_(p.shape), bound_(p.shape) {
    stages_.reserve(cores.size());
    for (auto& core : cores) stages_.emplace_back(std::move(core));
    ranks_.resize(stages_.size() * plan_.ranks);
    report_.stages.resize(stages_.size());
  }

  result<report> run() {
    for (std::uint64_t step = 0; step < plan_.steps; ++step) {
      begin_step(step_id{plan_.first.value() + step});
      for (settle(); !queue_.empty(); settle()) advance();
      if (auto ended = end_step(); !ended) return ended.failure();
    }
    nanoseconds busy = 0;
    for (const auto& rank : ranks_) busy += rank.busy;
    for (std::uint32_t s = 0; s < stages_.size(); ++s) {
      auto& stage = report_.stages[s];
      for (std::uint32_t r = 0; r < plan_.ranks; ++r) {
        const auto& rank = ranks_[lane_of(s, r)];
        stage.busy += rank.busy;
        stage.behind += rank.behind;
        stage.blocked += rank.blocked;
      }
      for (auto* sum : {&stage.busy, &stage.behind, &stage.blocked}) *sum /= plan_.ranks;
    }
    const auto available =
        static_cast<double>(ranks_.size()) * static_cast<double>(report_.makespan);
    if (available > 0) report_.bubble_fraction = 1 - static_cast<double>(busy) / available;
    return std::move(report_);
  }

 private:
  // ---- the step

  void begin_step(step_id step) {
    step_ = step;
    step_began_at_ = now_;
    std::optional<std::uint32_t> microbatches;
    if (plan_.microbatches) microbatches = plan_.microbatches(step);
    if (microbatches && *microbatches != shape_.microbatches) {
      shape_.microbatches = *microbatches;
      bound_ = lower_bound{shape_};
    }
    bound_.reset();
    const auto& shape = shape_;
    for (std::uint32_t s = 0; s < stages_.size(); ++s) {
      step_began begun{.step = step, .microbatches = microbatches};
      if (plan_.slot_bytes)
        for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
          begun.slot_bytes.push_back(plan_.slot_bytes(step, stage_id{s}, microbatch_id{mb}));
      stages_[s].ran_in_step = false;
      report_.stages[s].order.clear();
      notify(s, std::move(begun));
    }
    const auto first = shape.at(virtual_stage_id{0});
    for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
      for (std::uint32_t r = 0; r < plan_.ranks; ++r)
        notify(first.stage.value(),
               input_arrived{task_kind::forward, microbatch_id{mb}, first.chunk, rank_id{r}});
    if (!blocking()) return;
    for (auto& stage : stages_) stage.obeyed = obeyed_order(stage.core.hint(), shape);
    for (auto& rank : ranks_) {
      rank.posted.assign(std::size_t{2} * shape.chunks * shape.microbatches, 0);
      rank.ran = 0;
    }
    for (std::uint32_t lane = 0; lane < ranks_.size(); ++lane) post_receive(lane);
  }

  /// Delivers all events of the next instant, including those that they cause at the same instant.
  void advance() {
    now_ = queue_.top().at();
    while (!queue_.empty() && queue_.top().at() == now_) {
      const auto next = queue_.pop();
      if (next.is_task_end())
        finish_task(next.lane());
      else if (next.is_decision())
        request_decision(stage_of(next.lane()));
      else
        deliver(next.lane(), next.input());
    }
  }

  /// Lets every stage that received an event decide.
  void settle() {
    std::sort(notified_.begin(), notified_.end());
    for (const auto s : notified_) {
      stages_[s].notified = false;
      act(s, on(s, decide_));
    }
    notified_.clear();
  }

  status end_step() {
    bool complete = true;
    for (const auto& stage : stages_) complete = complete && stage.core.step_complete();
    if (!complete) return error{explain_deadlock()};
    for (std::uint32_t s = 0; s < stages_.size(); ++s) {
      end_idle(s);
      auto& total = report_.stages[s].memory;
      const auto before = std::exchange(total, stages_[s].core.memory());
      total.slots_peak = std::max(total.slots_peak, before.slots_peak);
      total.bytes_peak = std::max(total.bytes_peak, before.bytes_peak);
      total.activations_peak = std::max(total.activations_peak, before.activations_peak);
    }
    report_.steps.push_back({now_ - step_began_at_, bound_.value()});
    report_.makespan += report_.steps.back().makespan;
    report_.lower_bound += report_.steps.back().lower_bound;
    return success();
  }

  // ---- events to the cores

  std::span<const action> on(std::uint32_t s, const event& e) {
    ++report_.events;
    if (watcher_ != nullptr) watcher_->on_event(stage_id{s}, now_, e);
    auto& core = stages_[s].core;
    return plan_.decides != nullptr ? plan_.decides->on(stage_id{s}, core, e, now_) : core.on(e);
  }

  void notify(std::uint32_t s, event e) {
    on(s, e);
    request_decision(s);
  }

  void request_decision(std::uint32_t s) {
    if (stages_[s].notified) return;
    stages_[s].notified = true;
    notified_.push_back(s);
  }

  std::uint32_t lane_of(std::uint32_t s, std::uint32_t r) const { return s * plan_.ranks + r; }
  std::uint32_t stage_of(std::uint32_t lane) const { return lane / plan_.ranks; }
  rank_id rank_of(std::uint32_t lane) const { return rank_id{lane % plan_.ranks}; }

  void deliver(std::uint32_t lane, timed_event::input_index input) {
    const auto s = stage_of(lane);
    const auto mb = input / 2 % shape_.microbatches;
    const auto chunk = input / 2 / shape_.microbatches;
    const auto kind = input % 2 == 0 ? task_kind::forward : task_kind::backward;
    const task receiver{kind, microbatch_id{mb}, chunk_id{chunk}};
    notify(s, input_arrived{kind, receiver.mb, receiver.chunk, rank_of(lane)});
    if (!blocking()) return;
    const auto sender = plan_.shape.producer_of(stage_id{s}, receiver)->stage;
    if (sender != stage_id{s}) end_sending(lane_of(sender.value(), rank_of(lane).value()));
  }

  void act(std::uint32_t s, std::span<const action> actions) {
    if (actions.empty()) return;
    if (watcher_ != nullptr) watcher_->on_actions(stage_id{s}, now_, actions);
    for (const auto& a : actions) {
      if (const auto* const l = std::get_if<launch>(&a))
        start(s, *l);
      else
        begin_idle(s, std::get<wait>(a));
    }
    if (plan_.decides == nullptr) return;
    if (const auto after = plan_.decides->decides_again_after(stage_id{s}))
      queue_.push(timed_event::decision(now_ + *after, lane_of(s, 0)));
  }

  // ---- the devices

  void start(std::uint32_t s, const launch& l) {
    end_idle(s);
    stages_[s].ran_in_step = true;
    if (l.ends_task()) report_.stages[s].order.push_back(l.what);
    for (std::uint32_t r = 0; r < plan_.ranks; ++r) {
      auto& queue = ranks_[lane_of(s, r)].queue;
      queue.push_back(l);
      if (queue.size() == 1) begin_task(lane_of(s, r));
    }
  }

  void begin_task(std::uint32_t lane) {
    auto& rank = ranks_[lane];
    const stage_id stage{stage_of(lane)};
    const auto& [seq, t, why, folds, piece, pass] = rank.queue.front();
    end_ahead(rank);
    auto& running = stages_[stage.value()].running;
    if (running.empty() || running.back().seq < seq) running.push_back({seq, now_, plan_.ranks});
    const auto whole = plan_.ranks == 1 ? costs_.compute(step_, stage, t)
                                        : costs_.compute_of_rank(step_, stage, rank_of(lane), t);
    RRFP_CHECK(whole >= 0, "a duration must not be negative");
    const auto duration = piece.share_of(whole) + plan_.launch_cost;
    // What bounds one rank bounds the stage.
    if (pass != forward_pass::early && rank_of(lane) == rank_id{0})
      bound_.add_task(plan_.shape.virtual_stage(stage, t.chunk), stage, t, duration);
    rank.busy += duration;
    queue_.push(timed_event::task_end(now_ + duration, lane));
  }

  void finish_task(std::uint32_t lane) {
    auto& rank = ranks_[lane];
    note_end(lane, rank.queue.front());
    const auto t = rank.queue.front().what;
    const bool has_output = rank.queue.front().pass != forward_pass::again;
    if (blocking()) {
      ++rank.ran;
      if (send(lane, t)) {
        rank.sending = true;
        rank.sends_since = now_;
      }
      post_receive(lane);
      if (!rank.sending) notify_finished(lane);
    } else {
      notify_finished(lane);
      if (has_output) send(lane, t);
      if (!rank.queue.empty()) begin_task(lane);
    }
  }

  void notify_finished(std::uint32_t lane) {
    auto& rank = ranks_[lane];
    const auto s = stage_of(lane);
    const auto& stage = stages_[s];
    const auto seq = rank.queue.front().seq;
    rank.queue.erase(rank.queue.begin());
    notify(s, task_finished{seq, rank_of(lane)});
    if (rank.queue.empty()) rank.ahead_since = now_;
    if (stage.core.outstanding() != 0) return;
    for (std::uint32_t r = 0; r < plan_.ranks; ++r) end_ahead(ranks_[lane_of(s, r)]);
  }

  void end_ahead(rank_state& rank) {
    if (rank.ahead_since >= 0) rank.behind += now_ - rank.ahead_since;
    rank.ahead_since = -1;
  }

  /// Reports a launch that has ended on all ranks.
  void note_end(std::uint32_t lane, const launch& finished) {
    const auto s = stage_of(lane);
    auto& running = stages_[s].running;
    const auto span = std::ranges::find(running, finished.seq, &stage_state::span::seq);
    if (--span->left != 0) return;
    if (watcher_ != nullptr) watcher_->on_task({step_, stage_id{s}, finished, span->began, now_});
    running.erase(span);
  }

  /// Returns whether the result goes to another stage.
  bool send(std::uint32_t lane, const task& done) {
    const stage_id stage{stage_of(lane)};
    const auto next = plan_.shape.consumer_of(stage, done);
    if (!next) return false;
    const bool same_stage = next->stage == stage;
    if (same_stage || !blocking())
      travel(*next, rank_of(lane), same_stage);
    else
      post_end(*next, rank_of(lane), sent);
    return !same_stage;
  }

  /// Sends the input of `next` to a rank.
  void travel(const placed_task& next, rank_id to, bool same_stage = false) {
    const auto& t = next.what;
    const auto delay = same_stage         ? 0
                       : plan_.ranks == 1 ? costs_.link(step_, next.vs, t)
                                          : costs_.link_of_rank(step_, next.vs, to, t);
    RRFP_CHECK(delay >= 0, "a message must not arrive before it is sent");
    if (to == rank_id{0}) bound_.add_link(t.kind, t.mb, delay);
    queue_.push(timed_event::arrival(now_ + delay, lane_of(next.stage.value(), to.value()),
                                     input_index_of(t)));
  }

  // ---- blocking transport

  enum message_end : std::uint8_t { sent = 1, received = 2 };

  bool blocking() const { return plan_.messages == transport::blocking; }

  /// Posts one end of the message that carries the input of `next`.
  void post_end(const placed_task& next, rank_id rank, message_end end) {
    auto& posted =
        ranks_[lane_of(next.stage.value(), rank.value())].posted[input_index_of(next.what)];
    RRFP_CHECK((posted & end) == 0, "each end is posted once per step");
    posted |= end;
    if (posted == (sent | received)) travel(next, rank);
  }

  /// Posts the receive of the next F or B if another stage has to send its input.
  void post_receive(std::uint32_t lane) {
    const stage_id stage{stage_of(lane)};
    const auto& rank = ranks_[lane];
    const auto& obeyed = stages_[stage.value()].obeyed;
    const auto next =
        std::find_if(obeyed.begin() + static_cast<std::ptrdiff_t>(rank.ran), obeyed.end(),
                     [](const task& t) { return t.kind != task_kind::weight; });
    if (next == obeyed.end()) return;
    const auto& shape = plan_.shape;
    const auto from = shape.producer_of(stage, *next);
    const auto posted = rank.posted[input_index_of(*next)];
    if (from && from->stage != stage && (posted & received) == 0)
      post_end(*shape.consumer_of(from->stage, from->what), rank_of(lane), received);
  }

  void end_sending(std::uint32_t lane) {
    auto& rank = ranks_[lane];
    RRFP_CHECK(rank.sending, "the sender of an arriving message must be blocked");
    rank.sending = false;
    rank.blocked += now_ - rank.sends_since;
    notify_finished(lane);
  }

  timed_event::input_index input_index_of(const task& t) const {
    return static_cast<timed_event::input_index>(2 * shape_.index(t.mb, t.chunk) +
                                                 (t.kind == task_kind::forward ? 0 : 1));
  }

  // ---- idle time

  void begin_idle(std::uint32_t s, const wait& why) {
    auto& stage = stages_[s];
    if (stage.is_idle && stage.why == why) return;
    end_idle(s);
    stage.is_idle = true;
    stage.why = why;
    stage.idle_since = now_;
  }

  void end_idle(std::uint32_t s) {
    auto& stage = stages_[s];
    if (!stage.is_idle) return;
    stage.is_idle = false;
    const auto gap = now_ - stage.idle_since;
    if (gap == 0) return;
    auto& total = report_.stages[s];
    const auto why = stage.why.why;
    if (why == wait_cause::complete) {
      total.tail += gap;
    } else if (!stage.ran_in_step && why != wait_cause::ranks) {
      total.head += gap;
    } else {
      total.idle += gap;
      total.idle_by_cause[static_cast<std::size_t>(why)] += gap;
    }
    if (watcher_ != nullptr)
      watcher_->on_idle({step_, stage_id{s}, stage.why, stage.idle_since, now_});
  }

  /// The missing input or resource of the task that a stage wants to run next.
  std::string missing_for(std::uint32_t s, const stage_snapshot& state) const {
    if (state.waiting.why == wait_cause::memory) return "a memory slot";
    const auto& t = state.waiting.head;
    if (const auto own = state.own_task_before(t)) return "its own " + to_string(*own);
    const auto from = plan_.shape.producer_of(stage_id{s}, t);
    if (!from) return "nothing";
    auto wanted = from->what;
    if (is_backward(wanted.kind))
      wanted.kind = stages_[from->stage.value()].core.hint().backward_of(wanted.mb, wanted.chunk);
    return to_string(wanted) + " of stage " + std::to_string(from->stage.value());
  }

  std::string explain_deadlock() const {
    constexpr int named_max = 16;
    std::string text = to_string(step_) + " stalled after " +
                       std::to_string(now_ - step_began_at_) + " ns with tasks left: ";
    int stuck = 0;
    for (std::uint32_t s = 0; s < stages_.size(); ++s) {
      const auto& stage = stages_[s];
      if (stage.core.step_complete() || ++stuck > named_max) continue;
      if (stuck > 1) text += "; ";
      text += "stage " + std::to_string(s) + " waits ";
      const auto state = stage.core.snapshot();
      text += ranks_[lane_of(s, 0)].sending
                  ? "for the receiver of " + to_string(state.running.front().launched.what)
                  : "with " + to_string(state.waiting.head) + " for " + missing_for(s, state) +
                        " (" + std::string(name(state.waiting.why)) + ")";
    }
    if (stuck > named_max) text += "; and " + std::to_string(stuck - named_max) + " more stages";
    return text;
  }

  const plan& plan_;
  const cost_model& costs_;
  observer* const watcher_;
  const event decide_{decide{}};

  std::vector<stage_state> stages_;
  std::vector<rank_state> ranks_;  ///< by stage * plan.ranks + rank
  event_queue queue_;
  std::vector<std::uint32_t> notified_;
  nanoseconds now_ = 0;
  nanoseconds step_began_at_ = 0;
  step_id step_;
  pipeline_shape shape_;  ///< of this step
  lower_bound bound_;
  report report_;
};

/// Error: a policy without a schedule in in-order mode.
result<std::vector<stage_core>> make_cores(const plan& p) {
  std::vector<stage_core> cores;
  cores.reserve(p.shape.stages);
  for (std::uint32_t s = 0; s < p.shape.stages; ++s) {
    const stage_config config{.shape = p.shape,
                              .stage = stage_id{s},
                              .ranks = p.ranks,
                              .lookahead = p.lookahead,
                              .limit = p.limits.empty() ? p.limit : p.limits[s]};
    if (p.rule.mode == dispatch_mode::in_order) {
      const auto hint = p.rule.make_policy(p.shape, config.stage);
      if (hint->lanes() != 1)
        return error{"in-order mode: expected a policy with a fixed schedule, got '" +
                     std::string(hint->name()) + "', which has none"};
    }
    cores.push_back(make_stage_core(config, p.rule));
  }
  return cores;
}

/// Error: shapes or modes that the simulator refuses.
status check_plan(const plan& p) {
  if (auto valid = p.shape.validate(); !valid) return valid;
  const auto inputs = std::uint64_t{2} * p.shape.chunks * p.shape.microbatches;
  if (inputs >= std::numeric_limits<std::uint32_t>::max() - 1)
    return error{"expected chunks * microbatches below 2^31, got " + std::to_string(inputs / 2)};
  RRFP_CHECK(p.rule.make_policy != nullptr, "a plan must have a policy");
  if (p.messages == transport::blocking &&
      (p.rule.mode != dispatch_mode::in_order || p.lookahead != 0))
    return error{"blocking transport: expected mode in-order without lookahead, got " +
                 std::string(name(p.rule.mode)) + " with lookahead " + std::to_string(p.lookahead)};
  RRFP_CHECK(p.limits.empty() || p.limits.size() == p.shape.stages,
             "limits must have one entry per stage");
  RRFP_CHECK(p.ranks >= 1 && p.ranks <= 64, "a stage has 1 to 64 ranks");
  return success();
}

}  // namespace

std::string_view name(transport t) { return name_in({"asynchronous", "blocking"}, t); }

result<report> run(const plan& p, const cost_model& costs, observer* watcher) {
  if (auto valid = check_plan(p); !valid) return valid.failure();
  if (auto covered = costs.covers(p); !covered) return covered.failure();
  try {
    auto cores = make_cores(p);
    if (!cores) return cores.failure();
    return simulation{p, costs, watcher, std::move(*cores)}.run();
  } catch (const std::exception& e) {  // of a user's policy
    return error{e.what(), error_kind::failed};
  }
}

result<std::vector<sequence>> nominal_sequences(const plan& p, const cost_model& costs) {
  auto one_step = p;
  one_step.steps = 1;
  one_step.ranks = 1;
  auto ran = run(one_step, costs);
  if (!ran) return ran.failure();
  std::vector<sequence> orders;
  for (auto& stage : ran->stages) orders.push_back(std::move(stage.order));
  return orders;
}

}  // namespace rrfp::simulate
