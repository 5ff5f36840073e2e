#include <rrfp/simulate/simulator.hpp>

#include <algorithm>

#include <rrfp/base/step_name.hpp>
#include <rrfp/schedule/sequence.hpp>

#include "event_queue.hpp"
#include "lower_bound.hpp"
#include "stage_cores.hpp"

namespace rrfp::simulate {

namespace {

/// The simulator's view of a stage: its core, its device, and why the device is idle.
struct stage_state {
  explicit stage_state(stage_core c) : core(std::move(c)) {}

  stage_core core;
  /// Launches that the device has not finished; the first one is running.
  std::vector<launch> queue;
  nanoseconds task_began = 0;
  bool notified = false;

  bool is_idle = false;
  bool ran_in_step = false;
  wait why;
  nanoseconds idle_since = 0;

  // Blocking transport.
  sequence obeyed;
  /// The ends posted for each input, by input_index: see simulation::post_end().
  std::vector<std::uint8_t> posted;
  bool sending = false;
  nanoseconds sends_since = 0;
};

class simulation {
 public:
  simulation(const plan& p, const cost_model& costs, observer* watcher,
             std::vector<stage_core> cores)
      : plan_(p), costs_(costs), watcher_(watcher), bound_(p.shape) {
    stages_.reserve(cores.size());
    for (auto& core : cores) stages_.emplace_back(std::move(core));
    report_.stages.resize(stages_.size());
    if (!blocking()) return;
    for (auto& stage : stages_) stage.obeyed = obeyed_order(stage.core.hint(), plan_.shape);
  }

  result<report> run() {
    for (std::uint64_t step = 0; step < plan_.steps; ++step) {
      begin_step(step_id{step});
      for (settle(); !queue_.empty(); settle()) advance();
      if (auto ended = end_step(); !ended) return ended.failure();
    }
    nanoseconds busy = 0;
    for (const auto& stage : report_.stages) busy += stage.busy;
    const auto available =
        static_cast<double>(stages_.size()) * static_cast<double>(report_.makespan);
    if (available > 0) report_.bubble_fraction = 1 - static_cast<double>(busy) / available;
    return std::move(report_);
  }

 private:
  // ---- the step

  void begin_step(step_id step) {
    step_ = step;
    step_began_at_ = now_;
    bound_.reset();
    const auto& shape = plan_.shape;
    chosen_ = plan_.choose ? plan_.choose(step) : step_choice{};
    for (std::uint32_t s = 0; s < stages_.size(); ++s) {
      step_began begun{.step = step, .strategy = chosen_.strategy};
      if (plan_.slot_bytes)
        for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
          begun.slot_bytes.push_back(plan_.slot_bytes(step, stage_id{s}, microbatch_id{mb}));
      stages_[s].ran_in_step = false;
      report_.stages[s].order.clear();
      notify(s, std::move(begun));
    }
    const auto first = shape.at(virtual_stage_id{0});
    for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
      notify(first.stage.value(),
             input_arrived{task_kind::forward, microbatch_id{mb}, first.chunk, rank_id{0}});
    if (!blocking()) return;
    for (auto& stage : stages_)
      stage.posted.assign(std::size_t{2} * shape.chunks * shape.microbatches, 0);
    for (std::uint32_t s = 0; s < stages_.size(); ++s) post_receive(s);
  }

  /// Delivers all events of the next instant, including those that they cause at the same instant.
  void advance() {
    now_ = queue_.top().at();
    while (!queue_.empty() && queue_.top().at() == now_) {
      const auto next = queue_.pop();
      if (next.is_task_end())
        finish_task(next.stage());
      else
        deliver(next.stage(), next.input());
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
      const auto slots_peak = total.slots_peak;
      const auto bytes_peak = total.bytes_peak;
      const auto activations_peak = total.activations_peak;
      total = stages_[s].core.memory();
      total.slots_peak = std::max(total.slots_peak, slots_peak);
      total.bytes_peak = std::max(total.bytes_peak, bytes_peak);
      total.activations_peak = std::max(total.activations_peak, activations_peak);
    }
    report_.steps.push_back({now_ - step_began_at_, bound_.value(), chosen_});
    report_.makespan += report_.steps.back().makespan;
    report_.lower_bound += report_.steps.back().lower_bound;
    return success();
  }

  // ---- events to the cores

  std::span<const action> on(std::uint32_t s, const event& e) {
    ++report_.events;
    if (watcher_ != nullptr) watcher_->on_event(stage_id{s}, now_, e);
    return stages_[s].core.on(e);
  }

  void notify(std::uint32_t s, event e) {
    on(s, e);
    if (stages_[s].notified) return;
    stages_[s].notified = true;
    notified_.push_back(s);
  }

  void deliver(std::uint32_t s, timed_event::input_index input) {
    const auto mb = input / 2 % plan_.shape.microbatches;
    const auto chunk = input / 2 / plan_.shape.microbatches;
    const auto kind = input % 2 == 0 ? task_kind::forward : task_kind::backward;
    const task receiver{kind, microbatch_id{mb}, chunk_id{chunk}};
    notify(s, input_arrived{kind, receiver.mb, receiver.chunk, rank_id{0}});
    if (!blocking()) return;
    const auto sender = plan_.shape.producer_of(stage_id{s}, receiver)->stage;
    if (sender != stage_id{s}) end_sending(sender.value());
  }

  void act(std::uint32_t s, std::span<const action> actions) {
    if (actions.empty()) return;
    if (watcher_ != nullptr) watcher_->on_actions(stage_id{s}, now_, actions);
    auto& stage = stages_[s];
    for (const auto& a : actions) {
      if (const auto* const l = std::get_if<launch>(&a)) {
        stage.queue.push_back(*l);
        if (stage.queue.size() == 1) begin_task(s);
      } else {
        begin_idle(s, std::get<wait>(a));
      }
    }
  }

  // ---- the devices

  void begin_task(std::uint32_t s) {
    auto& stage = stages_[s];
    const auto& [seq, t, why, folds, piece, pass] = stage.queue.front();
    end_idle(s);
    stage.ran_in_step = true;
    stage.task_began = now_;
    const auto whole = costs_.compute(step_, stage_id{s}, t);
    RRFP_CHECK(whole >= 0, "a duration must not be negative");
    const auto duration = piece.share_of(whole) + plan_.launch_cost;
    if (pass != forward_pass::early)
      bound_.add_task(plan_.shape.virtual_stage(stage_id{s}, t.chunk), stage_id{s}, t, duration);
    report_.stages[s].busy += duration;
    if (stage.queue.front().ends_task()) report_.stages[s].order.push_back(t);
    queue_.push(timed_event::task_end(now_ + duration, s));
  }

  void finish_task(std::uint32_t s) {
    auto& stage = stages_[s];
    const auto& finished = stage.queue.front();
    if (watcher_ != nullptr)
      watcher_->on_task({step_, stage_id{s}, finished, stage.task_began, now_});
    const auto t = finished.what;
    const bool has_output = finished.pass != forward_pass::again;
    if (blocking()) {
      if (send(s, t)) {
        stage.sending = true;
        stage.sends_since = now_;
      }
      post_receive(s);
      if (!stage.sending) notify_finished(s);
    } else {
      notify_finished(s);
      if (has_output) send(s, t);
      if (!stage.queue.empty()) begin_task(s);
    }
  }

  void notify_finished(std::uint32_t s) {
    auto& stage = stages_[s];
    const auto finished = stage.queue.front();
    stage.queue.erase(stage.queue.begin());
    notify(s, task_finished{finished.seq, rank_id{0}});
  }

  /// Returns whether the result goes to another stage.
  bool send(std::uint32_t s, const task& done) {
    const auto next = plan_.shape.consumer_of(stage_id{s}, done);
    if (!next) return false;
    const bool same_stage = next->stage == stage_id{s};
    if (same_stage || !blocking())
      travel(*next, same_stage);
    else
      post_end(*next, sent);
    return !same_stage;
  }

  /// Sends the input of `next`.
  void travel(const placed_task& next, bool same_stage = false) {
    const auto& t = next.what;
    const auto delay = same_stage ? 0 : costs_.link(step_, next.vs, t);
    RRFP_CHECK(delay >= 0, "a message must not arrive before it is sent");
    bound_.add_link(t.kind, t.mb, delay);
    queue_.push(timed_event::arrival(now_ + delay, next.stage.value(), input_index_of(t)));
  }

  // ---- blocking transport

  enum message_end : std::uint8_t { sent = 1, received = 2 };

  bool blocking() const { return plan_.messages == transport::blocking; }

  /// Posts one end of the message that carries the input of `next`.
  void post_end(const placed_task& next, message_end end) {
    auto& posted = stages_[next.stage.value()].posted[input_index_of(next.what)];
    RRFP_CHECK((posted & end) == 0, "each end is posted once per step");
    posted |= end;
    if (posted == (sent | received)) travel(next);
  }

  /// Posts the receive of the next F or B if another stage has to send its input.
  void post_receive(std::uint32_t s) {
    const auto& obeyed = stages_[s].obeyed;
    const auto ran = static_cast<std::ptrdiff_t>(report_.stages[s].order.size());
    const auto next = std::find_if(obeyed.begin() + ran, obeyed.end(),
                                   [](const task& t) { return t.kind != task_kind::weight; });
    if (next == obeyed.end()) return;
    const auto& shape = plan_.shape;
    const auto from = shape.producer_of(stage_id{s}, *next);
    const auto posted = stages_[s].posted[input_index_of(*next)];
    if (from && from->stage != stage_id{s} && (posted & received) == 0)
      post_end(*shape.consumer_of(from->stage, from->what), received);
  }

  void end_sending(std::uint32_t s) {
    auto& stage = stages_[s];
    RRFP_CHECK(stage.sending, "the sender of an arriving message must be blocked");
    stage.sending = false;
    report_.stages[s].blocked += now_ - stage.sends_since;
    notify_finished(s);
  }

  timed_event::input_index input_index_of(const task& t) const {
    return static_cast<timed_event::input_index>(2 * plan_.shape.index(t.mb, t.chunk) +
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
    if (stage.why.why == wait_cause::complete) {
      total.tail += gap;
    } else if (!stage.ran_in_step) {
      total.head += gap;
    } else {
      total.idle += gap;
      total.idle_by_cause[static_cast<std::size_t>(stage.why.why)] += gap;
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
      wanted.kind = stages_[from->stage.value()].core.backward_of(wanted.mb, wanted.chunk);
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
      text += stage.sending
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
  event_queue queue_;
  std::vector<std::uint32_t> notified_;
  nanoseconds now_ = 0;
  nanoseconds step_began_at_ = 0;
  step_id step_;
  step_choice chosen_;
  lower_bound bound_;
  report report_;
};

}  // namespace

result<report> run(const plan& p, const cost_model& costs, observer* watcher) {
  if (auto valid = check_plan(p); !valid) return valid.failure();
  if (auto covered = costs.covers(p); !covered) return covered.failure();
  auto cores = make_cores(p);
  if (!cores) return cores.failure();
  return simulation{p, costs, watcher, std::move(*cores)}.run();
}

result<std::vector<sequence>> nominal_sequences(const plan& p, const cost_model& costs) {
  auto one_step = p;
  one_step.steps = 1;
  auto ran = run(one_step, costs);
  if (!ran) return ran.failure();
  std::vector<sequence> orders;
  for (auto& stage : ran->stages) orders.push_back(std::move(stage.order));
  return orders;
}

}  // namespace rrfp::simulate
