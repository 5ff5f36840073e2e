#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/planner.hpp>

#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

/// The candidates of policy auto that keep the limit.
plan automatic(const pipeline_shape& shape, memory_limit limit, std::uint64_t steps) {
  plan p;
  p.shape = shape;
  p.limit = limit;
  p.steps = steps;
  const auto set = policies::registry().make("auto", shape);
  REQUIRE(set.ok());
  for (const auto& way : (*set)->candidates())
    if (keeps_limits(p, way)) p.strategies.push_back(way);
  return p;
}

report run_automatic(const plan& p, const cost_model& costs,
                     std::shared_ptr<const cost_model> expected, observer* watcher = nullptr) {
  auto ran = run_planned(p, costs, std::move(expected), watcher);
  INFO((ran ? "" : ran.message()));
  REQUIRE(ran.ok());
  return *ran;
}

nanoseconds last_step(plan p, const strategy& way, const cost_model& costs) {
  p.strategies = {way};
  return run_well(p, costs).steps.back().makespan;
}

std::vector<std::uint32_t> choices(const report& r) {
  std::vector<std::uint32_t> all;
  for (const auto& step : r.steps) all.push_back(step.chosen.strategy);
  return all;
}

}  // namespace

TEST_CASE("without jitter a planned step is as quick as the best strategy, and as forecast") {
  for (const auto stages : {2U, 4U, 8U})
    for (const auto microbatches : {stages, 2 * stages, 4 * stages})
      for (const double link_ms : {0.0, 0.5, 1.2}) {
        stage_costs_options options;
        options.activation_ms = options.gradient_ms = link_ms;
        const auto shape = linear(stages, microbatches);
        const auto costs = std::make_shared<stage_costs>(*stage_costs::make(shape, options));
        const auto p = automatic(shape, {.slots = 2 * stages}, 2);
        const auto ran = run_automatic(p, *costs, costs);
        auto best = last_step(p, p.strategies[0], *costs);
        for (const auto& way : p.strategies) best = std::min(best, last_step(p, way, *costs));
        INFO(stages << " stages, " << microbatches << " microbatches, link " << link_ms);
        for (const auto& step : ran.steps) {
          CHECK(static_cast<double>(step.makespan) < 1.003 * static_cast<double>(best));
          CHECK(step.chosen.forecast == step.makespan);
        }
      }
}

TEST_CASE("forwards run early if that is quicker by more than 1.5 %") {
  const auto chosen = [](double link_ms) {
    stage_costs_options options;
    options.activation_ms = options.gradient_ms = link_ms;
    const auto shape = linear(8, 32);
    const auto costs = std::make_shared<stage_costs>(*stage_costs::make(shape, options));
    auto p = automatic(shape, {.slots = 8}, 2);
    p.strategies.resize(1);
    p.strategies.push_back(p.strategies.front());
    p.strategies.back().early_forwards = 16;
    const auto plain = last_step(p, p.strategies[0], *costs);
    const auto early = last_step(p, p.strategies[1], *costs);
    CHECK((early < plain) == (link_ms > 0));
    return run_automatic(p, *costs, costs).steps.back().chosen.strategy;
  };
  CHECK(chosen(1.0) == 1);
  CHECK(chosen(0.0) == 0);
}

TEST_CASE("tasks that should take next to nothing say nothing about the others") {
  class sparse final : public cost_model {
   public:
    explicit sparse(nanoseconds empty) : empty_(empty) {}
    nanoseconds compute(step_id, stage_id, const task& t) const override {
      return t.mb.value() % 3 == 0                  ? empty_
             : t.kind == task_kind::backward_weight ? 2'000'000
                                                    : 1'000'000;
    }
    nanoseconds link(step_id, virtual_stage_id, const task&) const override { return 100'000; }

   private:
    const nanoseconds empty_;
  };
  const sparse costs{20'000};
  const auto ran =
      run_automatic(automatic(linear(4, 24), {.slots = 8}, 4), costs, std::make_shared<sparse>(0));
  const auto& last = ran.steps.back();
  CHECK(static_cast<double>(last.chosen.forecast) == Approx(last.makespan).epsilon(0.1));
}

TEST_CASE("a plan needs no expected times once a step was measured") {
  // Messages so slow that a schedule in order is the best, which nothing but a measurement tells.
  stage_costs_options options;
  options.activation_ms = options.gradient_ms = 1.2;
  const auto shape = linear(4, 16);
  const auto costs = *stage_costs::make(shape, options);
  const auto p = automatic(shape, {.slots = 8}, 3);
  const auto ran = run_automatic(p, costs, nullptr);
  CHECK(ran.steps[1].chosen.forecast == ran.steps[1].makespan);
  CHECK(ran.steps[1].makespan <= ran.steps[0].makespan);
  CHECK(ran.steps[2].chosen.strategy == ran.steps[1].chosen.strategy);
}

TEST_CASE("a step that was not simulated is forecast by its expected work") {
  const auto shape = linear(3, 6);
  function_costs costs;
  auto p = automatic(shape, {.slots = 6}, 1);
  planner made{p, nullptr};
  CHECK(made.choice(step_id{4}).forecast == 0);
  made.simulate_all(step_id{0}, 1);
  const auto known = made.choice(step_id{0});
  CHECK(known.forecast > 0);
  const auto other = made.choice(step_id{4});
  CHECK(other.strategy == known.strategy);
  CHECK(std::abs(other.forecast - known.forecast) <= 1);
}

TEST_CASE("choices and forecasts are repeatable, and messages of every step are drawn anew") {
  const auto shape = linear(4, 8);
  const auto costs = jittered_costs(shape, 3);
  const auto expected = std::make_shared<stage_costs>(costs.undisturbed());
  const auto p = automatic(shape, {.slots = 4}, 6);
  const auto first = run_automatic(p, costs, expected);
  const auto again = run_automatic(p, costs, expected);
  CHECK(choices(first) == choices(again));
  CHECK(first.makespan == again.makespan);
  for (std::size_t i = 0; i < first.steps.size(); ++i)
    CHECK(first.steps[i].chosen.forecast == again.steps[i].chosen.forecast);
  CHECK(first.steps[1].chosen.forecast != first.steps[2].chosen.forecast);
}

TEST_CASE("every step runs to its end by the strategy that was chosen for it") {
  const pipeline_shape shape{3, 2, 7, placement::v};
  const auto costs = jittered_costs(shape, 5);
  auto p = automatic(shape, {.activations = 6}, 12);
  const auto n = static_cast<std::uint32_t>(p.strategies.size());
  REQUIRE(n > 2);
  p.choose = [n](step_id s) {
    return step_choice{static_cast<std::uint32_t>(s.value() * 5 % n), 0};
  };
  struct : observer {
    std::vector<std::vector<std::uint64_t>> numbers{3};
    void on_task(const task_span& t) override {
      numbers[t.stage.value()].push_back(t.what.seq.value());
    }
  } watcher;
  const auto ran = run_well(p, costs, &watcher);
  CHECK(ran.steps.size() == 12);
  // Launches are numbered through all steps, whichever strategy runs them.
  for (const auto& numbers : watcher.numbers)
    for (std::size_t i = 0; i < numbers.size(); ++i) CHECK(numbers[i] == i);
}

TEST_CASE("a schedule in order that needs more slots than there are is no candidate") {
  const auto shape = linear(4, 8);
  CHECK(automatic(shape, {.slots = 8}, 1).strategies.size() == 6);
  CHECK(automatic(shape, {.slots = 4}, 1).strategies.size() == 4);  // neither gpipe nor zb_h2
  CHECK(automatic(shape, {.slots = 1}, 1).strategies.size() == 2);
}

TEST_CASE("choices are summed up in a line") {
  const std::vector<strategy> ways{{.make_policy = {}, .name = "a"},
                                   {.make_policy = {}, .name = "b"}};
  CHECK(describe(ways, {}).empty());
  const std::vector<chosen_step> steps{{{1, 0}, 100}, {{0, 101}, 100}, {{1, 98}, 100}};
  CHECK(describe(ways, steps) == "a in 1 of 3 steps, b in 2; forecasts off by 1.5 % (median)");
}

}  // namespace rrfp::simulate
