/// Slow stages and ranks are found, and in balanced runs none, with the real policies in virtual
/// time.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>

#include <rrfp/core/stragglers.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/keyed_random.hpp>
#include <rrfp/simulate/simulator.hpp>

namespace rrfp {
namespace {

using simulate::nanoseconds;
constexpr nanoseconds us = 1000;

/// Times of tasks and messages; `factor` of a task on a stage in a step.
class costs final : public simulate::cost_model {
 public:
  using slowness = std::function<double(step_id, stage_id, const task&)>;
  explicit costs(slowness factor) : factor_(std::move(factor)) {}

  nanoseconds compute(step_id step, stage_id stage, const task& t) const override {
    const double usual = t.kind == task_kind::backward_weight ? 200 * us : 100 * us;
    return static_cast<nanoseconds>(usual * factor_(step, stage, t));
  }
  nanoseconds link(step_id, virtual_stage_id, const task&) const override { return 5 * us; }

 private:
  const slowness factor_;
};

/// What the ranks of a run report of each step.
class recorder final : public simulate::observer {
 public:
  recorder(std::uint32_t stages, std::uint64_t steps)
      : own(steps, std::vector<std::int64_t>(stages)), begin(steps, -1), end(steps) {}

  void on_task(const simulate::task_span& s) override {
    const auto step = s.step.value();
    own[step][s.stage.value()] += s.end - s.begin;
    if (begin[step] < 0) begin[step] = s.begin;
    begin[step] = std::min(begin[step], s.begin);
    end[step] = std::max(end[step], s.end);
  }

  std::vector<std::vector<std::int64_t>> own;
  std::vector<nanoseconds> begin;
  std::vector<nanoseconds> end;
};

struct setting {
  std::string policy;
  pipeline_shape shape;
  memory_limit limit{};
};

constexpr std::uint64_t steps = 30;

straggler_watch watched(const setting& s, const costs::slowness& factor,
                        std::uint64_t of_steps = steps) {
  auto set = policies::registry().make(s.policy, s.shape);
  REQUIRE(set.ok());
  simulate::plan p;
  p.shape = s.shape;
  p.rule.make_policy = [made = *set](const pipeline_shape&, stage_id stage) {
    return made->make(stage);
  };
  p.limit = s.limit;
  p.steps = of_steps;
  recorder seen{s.shape.stages, of_steps};
  const costs times{factor};
  REQUIRE(simulate::run(p, times, &seen).ok());
  straggler_watch watch{1, s.shape.stages, 1};
  for (std::uint64_t i = 0; i < of_steps; ++i) watch.add(seen.own[i], seen.end[i] - seen.begin[i]);
  return watch;
}

const costs::slowness even = [](step_id, stage_id, const task&) { return 1.0; };

costs::slowness slow(std::uint32_t stage, double factor) {
  return [=](step_id, stage_id s, const task&) { return s.value() == stage ? factor : 1.0; };
}

/// Log-normal delays of every task, as the weather of jobs has.
costs::slowness jittery(double sigma, const costs::slowness& beside) {
  return [=](step_id step, stage_id s, const task& t) {
    simulate::keyed_random random{step.value(), s.value(), t.mb.value(), t.chunk.value(),
                                  static_cast<std::uint64_t>(t.kind)};
    return beside(step, s, t) * std::exp(sigma * random.normal());
  };
}

std::vector<setting> settings() {
  std::vector<setting> all;
  for (const auto& known : policies::registry().known()) {
    const auto name = std::string{known.name};
    for (const std::uint32_t stages : {2u, 4u, 8u}) {
      const auto add = [&](const pipeline_shape& shape, memory_limit limit = {}) {
        if (policies::registry().make(name, shape).ok()) all.push_back({name, shape, limit});
      };
      add({stages, 1, 16, placement::linear});
      add({stages, 1, 16, placement::linear}, {.slots = 1});
      add({stages, 1, 16, placement::linear}, {.slots = 3});
      add({stages, 2, 16, placement::interleaved});
      add({stages, 2, 16, placement::v});
    }
  }
  REQUIRE(all.size() > 60);
  return all;
}

std::string text_of(const setting& s) {
  return s.policy + ", " + std::to_string(s.shape.stages) + " stages of " +
         std::to_string(s.shape.chunks) + ", " + std::to_string(s.limit.slots) + " slots";
}

void check_none(const setting& s, const straggler_watch& w) {
  INFO(text_of(s));
  CHECK(w.found() == std::vector<straggler>{});
}

using ranks = std::vector<rank_id>;

}  // namespace

TEST_CASE("A balanced pipeline has no straggler, whatever its policy, shape and memory") {
  for (const auto& s : settings()) check_none(s, watched(s, even));
}

TEST_CASE("Random delays that fall on all stages alike make no straggler") {
  for (const auto& s : settings())
    for (const auto sigma : {0.1, 0.3, 0.6, 1.0}) check_none(s, watched(s, jittery(sigma, even)));
}

TEST_CASE("Exactly the slow stage is a straggler, whatever the policy, shape and memory") {
  for (const auto& s : settings())
    for (const auto sigma : {0.0, 0.3, 0.6})
      for (std::uint32_t stage = 0; stage < s.shape.stages; ++stage) {
        INFO(text_of(s) << ", stage " << stage << ", sigma " << sigma);
        // One microbatch at a time: all stages work one after the other, and little is lost.
        const auto factor = s.limit.slots == 1 ? 4.0 : 1.5;
        const auto w = watched(s, jittery(sigma, slow(stage, factor)));
        REQUIRE(w.found().size() == 1);
        const auto& f = w.found()[0];
        CHECK(f.stage == stage_id{stage});
        CHECK(f.replica == replica_id{0});
        CHECK(f.ranks == ranks{rank_id{0}});
        CHECK(f.late >= straggler_watch::late_min);
        CHECK(f.waiting > f.late / 2);
        CHECK(f.waiting <= 1);
        for (std::uint32_t other = 0; other < s.shape.stages; ++other)
          if (other != stage) CHECK(w.late()[other] < w.late()[stage]);
      }
}

TEST_CASE("A stage that is a little slower than the others is none") {
  for (const auto& s : settings()) check_none(s, watched(s, slow(1, 1.05)));
}

TEST_CASE("A stage that stalls now and then is no straggler, however long") {
  const auto stalls = [](step_id step, stage_id s, const task& t) {
    const bool stall = step.value() % 5 == 0 && s.value() == 3 && t.mb.value() == 7;
    return stall ? 50.0 : 1.0;
  };
  check_none({"bfw", {8, 1, 16, placement::linear}},
             watched({"bfw", {8, 1, 16, placement::linear}}, stalls));
}

TEST_CASE("Two slow stages are two stragglers, the slower one first") {
  const auto both = [](step_id, stage_id s, const task&) {
    return s.value() == 2 ? 1.6 : s.value() == 5 ? 2.0 : 1.0;
  };
  const auto w = watched({"bfw", {8, 1, 16, placement::linear}}, both);
  REQUIRE(w.found().size() == 2);
  CHECK(w.found()[0].stage == stage_id{5});
  CHECK(w.found()[1].stage == stage_id{2});
}

TEST_CASE("A straggler is found after so many steps, and forgotten after as many without it") {
  const auto until_30 = [](step_id step, stage_id s, const task&) {
    return s.value() == 1 && step.value() < 30 ? 2.0 : 1.0;
  };
  const setting s{"bfw", {4, 1, 16, placement::linear}};
  CHECK(watched(s, until_30, straggler_watch::window - 1).found().empty());
  CHECK(watched(s, until_30, straggler_watch::window).found().size() == 1);
  CHECK(watched(s, until_30, 30).found().size() == 1);
  CHECK(watched(s, until_30, 30 + straggler_watch::window).found().empty());
}

namespace {

/// So many equal steps of 1000 ns.
straggler_watch with_own_times(std::uint32_t replicas, std::uint32_t stages, std::uint32_t of_ranks,
                               const std::vector<std::int64_t>& own) {
  straggler_watch watch{replicas, stages, of_ranks};
  for (std::size_t step = 0; step < straggler_watch::window; ++step) watch.add(own, 1000);
  return watch;
}

}  // namespace

TEST_CASE("The late ranks of a stage are named, all of them or some") {
  const auto one = with_own_times(1, 3, 2, {600, 610, 600, 900, 620, 600}).found();
  // The five others wait 290 ns each longer than for the median rank.
  REQUIRE(one.size() == 1);
  CHECK(one[0].stage == stage_id{1});
  CHECK(one[0].ranks == ranks{rank_id{1}});
  CHECK(one[0].late == Approx(0.3));
  CHECK(one[0].waiting == Approx(5 * 300 / (400 + 390 + 400 + 100 + 380 + 400.0)));
  const auto both = with_own_times(1, 3, 2, {600, 610, 880, 900, 620, 600}).found();
  REQUIRE(both.size() == 1);
  CHECK(both[0].ranks == ranks{rank_id{0}, rank_id{1}});
}

TEST_CASE("A late stage of one replica is named with its replica") {
  const auto found = with_own_times(3, 2, 1, {600, 610, 600, 900, 620, 600}).found();
  REQUIRE(found.size() == 1);
  CHECK(found[0].replica == replica_id{1});
  CHECK(found[0].stage == stage_id{1});
}

TEST_CASE("The only rank of a job is no straggler, and of two the slower one is") {
  CHECK(with_own_times(1, 1, 1, {900}).found().empty());
  const auto found = with_own_times(1, 2, 1, {900, 500}).found();
  REQUIRE(found.size() == 1);
  CHECK(found[0].stage == stage_id{0});
}

TEST_CASE("What ranks were late adds up over all steps") {
  const auto w = with_own_times(1, 3, 1, {600, 900, 500});
  CHECK(w.late() == std::vector<std::int64_t>{0, 20 * 300, 0});
}

}  // namespace rrfp
