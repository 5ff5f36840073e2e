#include <rrfp/simulate/planner.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include <rrfp/base/statistics.hpp>
#include <rrfp/weather/keyed_random.hpp>

namespace rrfp::simulate {

namespace {

constexpr std::size_t history_steps = 2;
/// A task whose expected time is a smaller share of the mean says nothing about the others.
constexpr double telling_share = 0.05;
/// The share of a new draw in the mean of many.
constexpr double newest_share_min = 0.1;
/// A strategy replaces the chosen one if it is quicker by more than this.
constexpr double gain_min = 0.002;
/// A strategy with early forwards computes more, so it must be quicker by this in addition.
constexpr double early_gain_min = 0.015;

/// All tasks are alike, and messages take no time.
class even_costs final : public cost_model {
 public:
  nanoseconds compute(step_id, stage_id, const task& t) const override {
    return t.kind == task_kind::backward_weight ? 2'000'000 : 1'000'000;
  }
  nanoseconds link(step_id, virtual_stage_id, const task&) const override { return 0; }
};

constexpr task_kind parts[] = {task_kind::forward, task_kind::backward, task_kind::weight};

}  // namespace

step_times::step_times(const pipeline_shape& shape) {
  const auto size = std::size_t{shape.virtual_stages()} * shape.microbatches;
  for (auto* all : {&forward, &backward, &weight, &activation, &gradient}) all->resize(size);
}

/// The costs of one simulated step, whatever its number.
class planner::drawn_costs final : public cost_model {
 public:
  explicit drawn_costs(const pipeline_shape& shape) : shape(shape), times(shape) {}

  nanoseconds compute(step_id, stage_id stage, const task& t) const override {
    const auto at = index(shape.virtual_stage(stage, t.chunk), t.mb);
    switch (t.kind) {
      case task_kind::forward: return times.forward[at];
      case task_kind::backward: return times.backward[at];
      case task_kind::weight: return times.weight[at];
      case task_kind::backward_weight: return times.backward[at] + times.weight[at];
    }
    return 0;
  }
  nanoseconds link(step_id, virtual_stage_id to, const task& t) const override {
    return (t.kind == task_kind::forward ? times.activation : times.gradient)[index(to, t.mb)];
  }

  std::size_t index(virtual_stage_id vs, microbatch_id mb) const {
    return std::size_t{vs.value()} * shape.microbatches + mb.value();
  }

  const pipeline_shape shape;
  step_times times;
};

planner::planner(plan candidates, std::shared_ptr<const cost_model> expected)
    : plan_(std::move(candidates)),
      expected_(expected ? std::move(expected) : std::make_shared<const even_costs>()),
      scores_(plan_.strategies.size()) {
  RRFP_CHECK(!plan_.strategies.empty(), "a planner chooses from at least one strategy");
  plan_.steps = 1;
  plan_.choose = {};
  plan_.ranks = 1;
}

double planner::expected(step_id step, stage_id stage, const task& t) const {
  return std::max(1.0, static_cast<double>(expected_->compute(step, stage, t)));
}

double planner::work_of(step_id step) {
  if (weighed_ == step) return work_;
  weighed_ = step;
  work_ = 1;
  const auto& shape = plan_.shape;
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    double sum = 0;
    for (std::uint32_t c = 0; c < shape.chunks; ++c)
      for (std::uint32_t i = 0; i < shape.microbatches; ++i)
        for (const auto kind : parts)
          sum += expected(step, stage_id{s}, {kind, microbatch_id{i}, chunk_id{c}});
    work_ = std::max(work_, sum);
  }
  return work_;
}

void planner::record(step_id step, const step_times& took) {
  const auto& shape = plan_.shape;
  const auto size = took.forward.size();
  samples s;
  for (auto* all : {&s.forward, &s.backward, &s.weight}) all->resize(size);
  s.activation = took.activation;
  s.gradient = took.gradient;
  const auto m = shape.microbatches;
  std::vector<double> whole(m);
  for (std::uint32_t v = 0; v < shape.virtual_stages(); ++v) {
    const auto place = shape.at(virtual_stage_id{v});
    const auto first = std::size_t{v} * m;
    const bool fused = std::all_of(took.weight.begin() + static_cast<std::ptrdiff_t>(first),
                                   took.weight.begin() + static_cast<std::ptrdiff_t>(first + m),
                                   [](nanoseconds t) { return t == 0; });
    const auto add = [&](std::vector<float>& ratios, const std::vector<nanoseconds>& measured,
                         std::initializer_list<task_kind> kinds) {
      double all = 0, all_whole = 0;
      for (std::uint32_t i = 0; i < m; ++i) {
        whole[i] = 0;
        for (const auto kind : kinds)
          whole[i] += expected(step, place.stage, {kind, microbatch_id{i}, place.chunk});
        all += static_cast<double>(measured[first + i]);
        all_whole += whole[i];
      }
      for (std::uint32_t i = 0; i < m; ++i) {
        const bool tells = whole[i] >= telling_share * all_whole / m;
        ratios[first + i] = static_cast<float>(
            tells ? static_cast<double>(measured[first + i]) / whole[i] : all / all_whole);
      }
    };
    add(s.forward, took.forward, {task_kind::forward});
    if (fused) {
      add(s.backward, took.backward, {task_kind::backward, task_kind::weight});
      std::copy_n(s.backward.begin() + static_cast<std::ptrdiff_t>(first), m,
                  s.weight.begin() + static_cast<std::ptrdiff_t>(first));
    } else {
      add(s.backward, took.backward, {task_kind::backward});
      add(s.weight, took.weight, {task_kind::weight});
    }
  }
  // What was simulated before may have had another scale.
  if (history_.empty()) {
    scores_.assign(scores_.size(), {});
    next_ = 0;
  }
  history_.push_back(std::move(s));
  if (history_.size() > history_steps) history_.pop_front();
}

void planner::begin_draw(step_id step) {
  const auto& shape = plan_.shape;
  step_ = step;
  ++draws_;
  auto draw = std::make_shared<drawn_costs>(shape);
  auto& times = draw->times;
  const auto m = shape.microbatches;
  for (std::uint32_t v = 0; v < shape.virtual_stages(); ++v) {
    const virtual_stage_id vs{v};
    const auto place = shape.at(vs);
    const auto first = std::size_t{v} * m;
    for (std::uint32_t i = 0; i < m; ++i) {
      weather::keyed_random random{draws_, v, i};
      // A task or message like this one, of the last steps.
      const auto drawn = [&](auto member, auto otherwise) {
        if (history_.empty()) return otherwise;
        const auto at = random.bits() % (history_.size() * m);
        return static_cast<decltype(otherwise)>((history_[at / m].*member)[first + at % m]);
      };
      const auto time = [&](task_kind kind, auto member) {
        const task t{kind, microbatch_id{i}, place.chunk};
        return static_cast<nanoseconds>(
            std::llround(expected(step, place.stage, t) * drawn(member, 1.0)));
      };
      const auto delay = [&](task_kind kind, auto member) {
        const task t{kind, microbatch_id{i}, place.chunk};
        const auto from = shape.producer_of(place.stage, t);
        if (!from || from->stage == place.stage) return nanoseconds{0};
        return history_.empty() ? expected_->link(step, vs, t) : drawn(member, nanoseconds{0});
      };
      times.forward[first + i] = time(task_kind::forward, &samples::forward);
      times.backward[first + i] = time(task_kind::backward, &samples::backward);
      times.weight[first + i] = time(task_kind::weight, &samples::weight);
      times.activation[first + i] = delay(task_kind::forward, &samples::activation);
      times.gradient[first + i] = delay(task_kind::backward, &samples::gradient);
    }
  }
  draw_ = std::move(draw);
}

void planner::simulate_next(step_id step) {
  if (next_ == 0) begin_draw(step);
  auto one = plan_;
  one.strategies = {plan_.strategies[next_]};
  if (plan_.slot_bytes)
    one.slot_bytes = [this](step_id, stage_id s, microbatch_id mb) {
      return plan_.slot_bytes(step_, s, mb);
    };
  const auto ran = run(one, *draw_);
  // A schedule that cannot run within the limits is never chosen.
  constexpr auto never = std::numeric_limits<nanoseconds>::max() / 4;
  const auto time = ran ? ran->makespan : never;
  if (next_ == 0) first_time_ = std::max<nanoseconds>(time, 1);
  auto& s = scores_[next_];
  const auto share = std::max(1.0 / ++s.draws, newest_share_min);
  const auto ns = static_cast<double>(time);
  s.ratio += (ns / static_cast<double>(first_time_) - s.ratio) * share;
  s.per_work += (ns / work_of(step_) - s.per_work) * share;
  if (s.step != step_) s.draws_of_step = 0, s.time_of_step = 0;
  s.step = step_;
  ++s.draws_of_step;
  s.time_of_step += time;
  next_ = (next_ + 1) % static_cast<std::uint32_t>(scores_.size());
  if (next_ == 0) choose();
}

void planner::simulate_all(step_id step, std::uint32_t draws) {
  next_ = 0;
  for (std::uint32_t i = 0; i < draws * scores_.size(); ++i) simulate_next(step);
}

void planner::choose() {
  const auto ratio = [&](std::uint32_t i) {
    return scores_[i].ratio + (plan_.strategies[i].early_forwards != 0 ? early_gain_min : 0);
  };
  for (std::uint32_t i = 0; i < scores_.size(); ++i)
    if (ratio(i) < ratio(choice_) * (1 - gain_min)) choice_ = i;
}

step_choice planner::choice(step_id step) {
  const auto& s = scores_[choice_];
  if (s.draws_of_step != 0 && s.step == step) return {choice_, s.time_of_step / s.draws_of_step};
  return {choice_, std::llround(s.per_work * work_of(step))};
}

std::string describe(std::span<const strategy> strategies, std::span<const chosen_step> steps) {
  if (steps.empty()) return {};
  std::vector<std::size_t> count(strategies.size());
  std::vector<double> off;
  for (const auto& s : steps) {
    ++count[s.chosen.strategy];
    const auto forecast = static_cast<double>(s.chosen.forecast);
    if (forecast > 0 && s.took > 0)
      off.push_back(std::abs(forecast / static_cast<double>(s.took) - 1) * 100);
  }
  std::string text;
  for (std::size_t i = 0; i < count.size(); ++i) {
    if (count[i] == 0) continue;
    text += (text.empty() ? "" : ", ") + strategies[i].name + " in " + std::to_string(count[i]) +
            (text.empty() ? " of " + std::to_string(steps.size()) + " steps" : "");
  }
  if (off.empty()) return text;
  const auto tenths = std::llround(median(off) * 10);
  return text + "; forecasts off by " + std::to_string(tenths / 10) + "." +
         std::to_string(tenths % 10) + " % (median)";
}

namespace {

/// Measures the steps of a simulation for a planner.
class measured_steps final : public observer {
 public:
  measured_steps(const plan& p, std::shared_ptr<const cost_model> expected, observer* next)
      : shape_(p.shape),
        planner_(p, std::move(expected)),
        next_(next),
        took_(p.shape),
        forward_ended_(took_.forward.size()),
        backward_ended_(took_.forward.size()) {
    planner_.set_launch_cost(p.launch_cost);
  }

  step_choice choose(step_id step) {
    constexpr std::uint32_t draws = 3;
    if (step.value() > 0) planner_.record(step_id{step.value() - 1}, took_);
    took_ = step_times{shape_};
    planner_.simulate_all(step, draws);
    return planner_.choice(step);
  }

  void on_event(stage_id stage, nanoseconds at, const event& e) override {
    if (next_ != nullptr) next_->on_event(stage, at, e);
    if (const auto* const arrived = std::get_if<input_arrived>(&e)) measure(stage, at, *arrived);
  }
  void on_actions(stage_id stage, nanoseconds at, std::span<const action> actions) override {
    if (next_ != nullptr) next_->on_actions(stage, at, actions);
  }
  void on_idle(const idle_span& i) override {
    if (next_ != nullptr) next_->on_idle(i);
  }
  void on_task(const task_span& ran) override {
    if (next_ != nullptr) next_->on_task(ran);
    const auto& t = ran.what.what;
    const auto at = index(shape_.virtual_stage(ran.stage, t.chunk), t.mb);
    const auto time = ran.end - ran.begin;
    if (t.kind == task_kind::forward) {
      took_.forward[at] = time;
      if (ran.what.pass != forward_pass::again) forward_ended_[at] = ran.end;
    } else if (is_backward(t.kind)) {
      took_.backward[at] = time;
      backward_ended_[at] = ran.end;
    } else {
      took_.weight[at] += time;
    }
  }

 private:
  std::size_t index(virtual_stage_id vs, microbatch_id mb) const {
    return std::size_t{vs.value()} * shape_.microbatches + mb.value();
  }
  void measure(stage_id stage, nanoseconds at, const input_arrived& e) {
    const task receiver{e.kind, e.mb, e.chunk};
    const auto sender = shape_.producer_of(stage, receiver);
    if (!sender) return;
    const bool forward = e.kind == task_kind::forward;
    const auto& ended = forward ? forward_ended_ : backward_ended_;
    auto& delays = forward ? took_.activation : took_.gradient;
    delays[index(shape_.virtual_stage(stage, e.chunk), e.mb)] = at - ended[index(sender->vs, e.mb)];
  }

  pipeline_shape shape_;
  planner planner_;
  observer* const next_;
  step_times took_;
  std::vector<nanoseconds> forward_ended_;
  std::vector<nanoseconds> backward_ended_;
};

}  // namespace

result<report> run_planned(const plan& p, const cost_model& costs,
                           std::shared_ptr<const cost_model> expected, observer* watcher) {
  if (p.strategies.size() == 1) return run(p, costs, watcher);
  measured_steps steps{p, std::move(expected), watcher};
  auto planned = p;
  planned.choose = [&](step_id s) { return steps.choose(s); };
  return run(planned, costs, &steps);
}

}  // namespace rrfp::simulate
