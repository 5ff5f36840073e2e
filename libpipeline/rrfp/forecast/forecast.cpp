#include <rrfp/forecast/forecast.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include <rrfp/base/statistics.hpp>
#include <rrfp/base/units.hpp>
#include <rrfp/core/sequence.hpp>
#include <rrfp/report/breakdown.hpp>
#include <rrfp/report/profile.hpp>
#include <rrfp/simulate/duration_table.hpp>

#include "costs.hpp"

namespace rrfp::forecast {

namespace {

/// A replay that is further off has not understood the trace.
constexpr double trusted_error_percent = 5;

using task_key = std::tuple<step_id, stage_id, task>;

/// From the decision for a task to its begin, on the slowest rank.
std::map<task_key, nanoseconds> gaps_of(const report::traced_run& run) {
  std::map<task_key, nanoseconds> gaps;
  for (const auto& t : run.tasks) {
    if (t.replica != replica_id{0} || t.piece.number != 0) continue;
    auto& gap = gaps[{t.step, t.stage, t.what}];
    gap = std::max(gap, t.begin - t.decided);
  }
  return gaps;
}

/// The wait that the arrival for a task ended.
struct arrival {
  nanoseconds idle_since = 0;
  nanoseconds at = 0;
};

std::map<task_key, arrival> arrivals_of(const report::traced_run& run) {
  std::map<task_key, arrival> found;
  for (const auto& w : run.waits)
    if (w.replica == replica_id{0} && report::ends_with_an_arrival(w.what.why))
      found[{w.step, w.stage, w.what.head}] = {w.begin, w.end};
  return found;
}

/// A step as it was recorded.
struct recorded_step {
  explicit recorded_step(std::uint32_t stages) : order(stages) {}

  std::vector<sequence> order;  ///< of the tasks on each stage
  nanoseconds begin = std::numeric_limits<nanoseconds>::max();
  nanoseconds end = 0;
  nanoseconds in_tasks = 0;  ///< of all ranks
};

class forecaster {
 public:
  forecaster(const report::traced_run& run, report::profile p, const policy_registry& policies,
             double backward_share)
      : run_(run),
        profile_(std::move(p)),
        policies_(policies),
        backward_share_(backward_share),
        gaps_(gaps_of(run)),
        arrivals_(arrivals_of(run)),
        steps_(steps_of_run()),
        recorded_(profile_.shape),
        plain_(profile_.shape) {}

  result<forecast> make() {
    read_costs();
    if (auto replayed = replay(); !replayed) return replayed.failure();
    made_.schedule = recorded_schedule();
    made_.outcomes.push_back(own_order("recorded order", plain_));
    if (profile_.shape.stages > 1) {
      made_.outcomes.push_back(own_order("even cut", even_costs{plain_, profile_}));
      made_.notes.push_back(
          "even cut: the recorded order with the work of each microbatch spread evenly over all "
          "stages, about the most that a better cut gives.");
    }
    const auto all = candidates();
    for (const auto& [name, mode, slots] : all)
      if (auto ran = simulate_policy(name, mode, slots); ran) made_.outcomes.push_back(*ran);
    if (auto ran = two_replicas(made_.schedule.empty() ? all.front().name : made_.schedule); ran)
      made_.outcomes.push_back(*ran);
    return std::move(made_);
  }

 private:
  struct candidate {
    std::string name;
    dispatch_mode mode;
    std::uint32_t slots;
  };

  /// `recorded_`: for the replay; each task with the gap before it. `plain_`: for the other
  /// schedules.
  void read_costs() {
    std::vector<double> gaps, messages;
    for (const auto& t : profile_.tasks) {
      if (t.replica != replica_id{0}) continue;
      const auto found = gaps_.find({t.step, t.stage, t.what});
      const auto gap = found == gaps_.end() ? 0 : found->second;
      if (gap > 0) gaps.push_back(static_cast<double>(gap));
      recorded_.set_compute(t.step, t.stage, t.what, t.took + gap);
      plain_.set_compute(t.step, t.stage, t.what, t.took);
      if (t.what.kind != task_kind::backward_weight) continue;
      // A row of its own in place of the sum: B and W of a backward that was not split.
      const auto part = std::llround(static_cast<double>(t.took) * backward_share_);
      plain_.set_compute(t.step, t.stage, {task_kind::backward, t.what.mb, t.what.chunk}, part);
      plain_.set_compute(t.step, t.stage, {task_kind::weight, t.what.mb, t.what.chunk},
                         t.took - part);
      was_fused_ = true;
    }
    for (const auto& m : profile_.messages)
      if (m.replica == replica_id{0} && was_idle_for(m))
        messages.push_back(static_cast<double>(m.took));
    launch_ = std::llround(median(gaps));
    const auto typical = std::llround(median(messages));
    made_.launch_ms = milliseconds(launch_);
    made_.message_ms = milliseconds(typical);
    set_links(typical);
    for (const auto& m : profile_.messages) {
      if (m.replica != replica_id{0}) continue;
      const auto as_input = input_of(m.what);
      recorded_.set_link(m.step, m.to, as_input, m.took);
      if (was_idle_for(m)) plain_.set_link(m.step, m.to, as_input, m.took);
    }
    for (const auto& t : run_.tasks)
      if (t.replica == replica_id{0})
        made_.slots =
            std::max(made_.slots, static_cast<std::uint32_t>(std::max<std::int64_t>(t.slots, 1)));
  }

  /// Whether the receiver was idle before the message was sent, so that its time is that of the
  /// transfer alone. (Frameworks that pair sends with receives send when both are ready.)
  bool was_idle_for(const report::timed_message& m) const {
    const auto at = profile_.shape.at(m.to);
    const auto found = arrivals_.find({m.step, at.stage, m.what});
    return found != arrivals_.end() && found->second.idle_since <= found->second.at - m.took;
  }

  static task input_of(task t) {
    if (t.kind == task_kind::backward_weight) t.kind = task_kind::backward;
    return t;
  }

  void set_links(nanoseconds typical) {
    const auto& shape = profile_.shape;
    for (const auto step : profile_.steps)
      for (std::uint32_t v = 0; v < shape.virtual_stages(); ++v)
        for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb) {
          const auto at = shape.at(virtual_stage_id{v});
          for (const auto kind : {task_kind::forward, task_kind::backward}) {
            const task t{kind, microbatch_id{mb}, at.chunk};
            if (const auto from = shape.producer_of(at.stage, t); from && from->stage != at.stage)
              plain_.set_link(step, virtual_stage_id{v}, t, typical);
          }
        }
  }

  /// Of replica 0, in one walk over all tasks.
  std::map<step_id, recorded_step> steps_of_run() const {
    std::map<step_id, recorded_step> steps;
    for (const auto& t : run_.tasks) {
      if (t.replica != replica_id{0}) continue;
      auto& s = steps.try_emplace(t.step, profile_.shape.stages).first->second;
      s.begin = std::min(s.begin, t.begin);
      s.end = std::max(s.end, t.end);
      s.in_tasks += t.end - t.begin;
      if (t.rank == rank_id{0} && t.piece.number == 0 && t.pass != forward_pass::again)
        s.order[t.stage.value()].push_back(t.what);
    }
    return steps;
  }

  status replay() {
    std::vector<double> measured, replayed, errors;
    double busy = 0, available = 0;
    for (const auto step : profile_.steps) {
      const auto& of_run = steps_.at(step);
      if (auto ends = check_sequences(profile_.shape, of_run.order); !ends) return ends.failure();
      auto plan = plan_of_order(of_run.order, step);
      plan.launch_cost = 0;  // each task has its own gap
      const auto ran = simulate::run(plan, recorded_);
      if (!ran) return ran.failure();
      const replayed_step s{step, milliseconds(std::max<nanoseconds>(of_run.end - of_run.begin, 1)),
                            milliseconds(ran->makespan)};
      busy += milliseconds(of_run.in_tasks);
      available += s.measured_ms * profile_.shape.stages * profile_.ranks;
      measured.push_back(s.measured_ms);
      replayed.push_back(s.replayed_ms);
      errors.push_back(std::abs(s.error_percent()));
      made_.steps.push_back(s);
    }
    if (busy <= 0) return error{"expected tasks that take time, got none"};
    made_.measured_ms = median(measured);
    made_.replayed_ms = median(replayed);
    made_.error_percent = median(errors);
    made_.bubble = 1 - busy / available;
    return success();
  }

  /// The recorded order on the costs of the others: what sends and gaps of the framework took more
  /// than the median is left out.
  outcome own_order(std::string name, const simulate::cost_model& costs) const {
    measures all;
    for (const auto step : profile_.steps) {
      const auto plan = plan_of_order(steps_.at(step).order, step);
      if (const auto ran = simulate::run(plan, costs); ran) all.add(*ran);
    }
    return all.outcome_of(std::move(name), dispatch_mode::in_order);
  }

  /// Of the steps of an outcome.
  struct measures {
    std::vector<double> steps;
    double busy = 0;

    void add(const simulate::report& ran) {
      steps.push_back(milliseconds(ran.makespan));
      busy += busy_of(ran);
    }
    /// Of two replicas: the slower one counts.
    void add(const simulate::report& one, const simulate::report& other) {
      steps.push_back(milliseconds(std::max(one.makespan, other.makespan)));
      busy += (busy_of(one) + busy_of(other)) / 2;
    }
    static double busy_of(const simulate::report& ran) {
      return milliseconds(ran.makespan) * (1 - ran.bubble_fraction);
    }
    outcome outcome_of(std::string name, dispatch_mode mode, std::uint32_t slots = 0,
                       bool assumes_split = false) const {
      const auto took = std::accumulate(steps.begin(), steps.end(), 1e-9);
      return {std::move(name), mode, slots, median(steps), 1 - busy / took, assumes_split};
    }
  };

  std::string recorded_schedule() const {
    const auto& order = steps_.at(profile_.steps.front()).order;
    for (const auto& known : policies_.known()) {
      if (!known.fixed) continue;
      const auto set = policies_.make(known.name, profile_.shape);
      if (set && (*set)->sequences() != nullptr && *(*set)->sequences() == order)
        return std::string{known.name};
    }
    return {};
  }

  std::vector<candidate> candidates() const {
    using enum dispatch_mode;
    std::vector<candidate> all;
    const auto& shape = profile_.shape;
    if (shape.chunks == 1)
      all = {{"one_f_one_b", in_order, 0}, {"zb_h1", in_order, 0}};
    else if (shape.layout == placement::v)
      all = {{"zb_v", in_order, 0}};
    else
      all = {{"interleaved_1f1b", in_order, 0}};
    for (const auto* const name : {"bf", "bfw_plus"})
      for (const auto times : {1u, 2u})
        if (times == 1 || made_.slots < shape.microbatches)
          all.push_back({name, ready, std::min(made_.slots * times, shape.microbatches)});
    return all;
  }

  simulate::plan plan_of(std::shared_ptr<const policy_set> policy, const pipeline_shape& shape,
                         dispatch_mode mode, std::uint32_t slots) const {
    simulate::plan plan;
    plan.shape = shape;
    plan.rule.mode = mode;
    plan.rule.weight_pieces = 1;
    plan.rule.make_policy = [set = std::move(policy)](const pipeline_shape&, stage_id s) {
      return set->make(s);
    };
    plan.limit.slots = slots;
    plan.launch_cost = launch_;
    return plan;
  }

  simulate::plan plan_of_order(const std::vector<sequence>& order, step_id step) const {
    auto plan = plan_of(std::make_shared<const policy_set>("recorded", order), profile_.shape,
                        dispatch_mode::in_order, 0);
    plan.first = step;
    return plan;
  }

  bool assumes_split(const policy_set& policy) const {
    return was_fused_ && policy.make(stage_id{0})->backward_of(microbatch_id{0}, chunk_id{0}) ==
                             task_kind::backward;
  }

  result<outcome> simulate_policy(const std::string& name, dispatch_mode mode,
                                  std::uint32_t slots) const {
    const auto set = policies_.make(name, profile_.shape);
    if (!set) return set.failure();
    auto plan = plan_of(*set, profile_.shape, mode, slots);
    measures all;
    for (const auto step : profile_.steps) {
      plan.first = step;
      const auto ran = simulate::run(plan, plain_);
      if (!ran) return ran.failure();
      all.add(*ran);
    }
    return all.outcome_of(name, mode, slots, assumes_split(**set));
  }

  /// The same devices as two pipelines of half as many stages, if the numbers are even.
  result<outcome> two_replicas(const std::string& policy) {
    auto shape = profile_.shape;
    if (shape.stages % 2 != 0 || shape.microbatches % 2 != 0)
      return error{"expected even numbers of stages and microbatches"};
    shape.stages /= 2;
    shape.microbatches /= 2;
    const auto set = policies_.make(policy, shape);
    if (!set) return set.failure();
    auto plan = plan_of(*set, shape, dispatch_mode::in_order, 0);
    measures all;
    for (const auto step : profile_.steps) {
      plan.first = step;
      const auto run_from = [&](std::uint32_t first) {
        return simulate::run(plan, merged_costs{plain_, profile_.shape, shape, first});
      };
      const auto one = run_from(0), other = run_from(shape.microbatches);
      if (!one) return one.failure();
      if (!other) return other.failure();
      all.add(*one, *other);
    }
    made_.notes.push_back(fmt::format(
        "two replicas: pipelines of {} with {} microbatches each, in the order of {}; each device "
        "holds the weights of two stages, and the exchange of gradients is left out.",
        shape.stages == 1 ? "one stage" : fmt::format("{} stages", shape.stages),
        shape.microbatches, policy));
    return all.outcome_of("two replicas", dispatch_mode::in_order, 0, assumes_split(**set));
  }

  const report::traced_run& run_;
  const report::profile profile_;
  const policy_registry& policies_;
  const double backward_share_;
  const std::map<task_key, nanoseconds> gaps_;
  const std::map<task_key, arrival> arrivals_;
  const std::map<step_id, recorded_step> steps_;
  simulate::duration_table recorded_, plain_;
  nanoseconds launch_ = 0;
  bool was_fused_ = false;
  forecast made_;
};

}  // namespace

result<forecast> make_forecast(const report::traced_run& run, const policy_registry& policies,
                               double backward_share) {
  auto p = report::profile_of(run, step_id{0}, step_id{~std::uint64_t{0}});
  if (!p) return p.failure();
  return forecaster{run, *std::move(p), policies, backward_share}.make();
}

std::string sentence_of(const forecast& f) {
  const outcome* best = nullptr;
  for (const auto& o : f.outcomes)
    if (o.mode == dispatch_mode::ready && !o.assumes_split && o.slots <= f.slots &&
        (best == nullptr || o.step_ms < best->step_ms))
      best = &o;
  if (best == nullptr) return "No forecast for readiness could be made.";
  // The recorded order on the same costs: its gain over the replay is not that of readiness.
  const auto base = f.outcomes.front().step_ms;
  const auto gain = (1 - best->step_ms / base) * 100;
  const outcome* more = nullptr;
  for (const auto& o : f.outcomes)
    if (o.mode == dispatch_mode::ready && o.policy == best->policy && o.slots > f.slots) more = &o;
  auto text = fmt::format(
      "With the memory of this run ({} slots) readiness ({}) would take {:.3f} ms for a step, the "
      "recorded order {:.3f} ms: {:.1f} % {}",
      f.slots, best->policy, best->step_ms, base, std::abs(gain), gain < 0 ? "more" : "less");
  if (more != nullptr) text += fmt::format("; with {} slots {:.3f} ms", more->slots, more->step_ms);
  if (f.error_percent > trusted_error_percent)
    text += ". The replay does not meet the measured steps: do not trust this";
  return text + ".";
}

}  // namespace rrfp::forecast
