/// Compares the policies in simulation, at equal memory and in equal weather.
///
///   cmake --preset release && cmake --build --preset release --target policies_bench
///   build/release/bin/policies_bench            # every row
///   build/release/bin/policies_bench balanced   # the rows whose name begins so
///
/// A cell is one step of a pipeline: p = 4, 8, 16, 32 stages; m = p, 2p, 4p, 8p microbatches (not
/// 8p at 32); messages that take an exponential time of mean 0, .1 or .3 F; task times with a
/// log-normal factor of sigma .3 or .6, or .3 with 1 % of the tasks ten times as long, or without
/// jitter if messages vary; F:B:W of 1:1:1 and 1:1.2:.8 by seed; 5 seeds (2 at p = 32). All factors
/// have mean 1. That is 726 cells in each row; a row differs in the workload and the slots.
///
///   balanced     all stages alike
///   slow         one stage, drawn by the seed, takes 1.3 times as long
///   multimodal   the first quarter of the stages is an encoder: a log-normal factor of each
///                microbatch (sigma .8 there, .3 on the other stages) changes its tasks
///   16 x 64      multimodal with 16 stages, 64 microbatches, messages of .3 F, sigma .3; 20 seeds
///
/// The figures are geometric means over the cells of the time of a step under asynchronous 1F1B in
/// order, divided by the time with the policy; and of bfw's time divided by that with bfw_plus,
/// with two 1 % quantiles, one over the cells and one over the settings (the means over the seeds),
/// and for the cells with 8 stages or more. `early` is bfw_plus with 2p early forwards, `sorted`
/// the same with small, large, small microbatches. The bound ignores memory.
///
/// The rows `no jitter` give the worst ratio of the best schedule in order over bfw_plus, those of
/// `parts` what each part of bfw_plus gains over bfw.
///
/// The rows `v` compare the placement v with a linear one under bfw: balanced stages, messages of
/// mean .1 F, log-normal factors, and slots counted by chunk, so that all have the same memory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include <rrfp/base/statistics.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/sequence.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/keyed_random.hpp>
#include <rrfp/simulate/simulator.hpp>

namespace {

using namespace rrfp;
using simulate::keyed_random;
using simulate::nanoseconds;

constexpr double forward_ns = 1e6;

enum class workload : std::uint8_t { balanced, slow, multimodal };

struct cell {
  workload work;
  pipeline_shape shape;
  std::uint64_t seed;
  double link_mean;      ///< in F
  double compute_sigma;  ///< 0: no jitter
  bool spikes = false;
  bool jitter = true;
};

/// A log-normal factor with mean 1.
double lognormal(keyed_random random, double sigma) {
  return std::exp(sigma * random.normal() - sigma * sigma / 2);
}

class cell_costs final : public simulate::cost_model {
 public:
  /// The order of admission is the same in both steps of a cell.
  explicit cell_costs(const cell& c, admission order = admission::loaded, bool jitter = true)
      : cell_(c),
        slow_stage_(keyed_random{c.seed, 1}.bits() % c.shape.stages),
        jitter_(jitter && c.jitter) {
    if (order == admission::loaded) return;
    const cell_costs calm{c, admission::loaded, false};
    for (std::uint64_t step = 0; step < 2; ++step) {
      std::vector<double> cost(c.shape.microbatches);
      for (std::uint32_t i = 0; i < c.shape.microbatches; ++i)
        for (std::uint32_t s = 0; s < c.shape.stages; ++s)
          for (const auto kind : {task_kind::forward, task_kind::backward_weight})
            cost[i] += static_cast<double>(
                calm.compute(step_id{step}, stage_id{s}, {kind, microbatch_id{i}, chunk_id{0}}));
      order_.push_back(admission_order(order, cost));
    }
  }

  nanoseconds compute(step_id step, stage_id stage, const task& t) const override {
    const auto mb = loaded(step, t.mb);
    if (t.kind == task_kind::backward_weight)
      return compute_part(step, stage, task_kind::backward, mb, t.chunk) +
             compute_part(step, stage, task_kind::weight, mb, t.chunk);
    return compute_part(step, stage, t.kind, mb, t.chunk);
  }
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override {
    keyed_random random{seed_of(step), 2, to.value(), static_cast<std::uint64_t>(t.kind),
                        loaded(step, t.mb).value()};
    const auto factor = jitter_ ? -std::log1p(-random.uniform()) : 1;
    return std::llround(factor * cell_.link_mean * forward_ns);
  }

 private:
  microbatch_id loaded(step_id step, microbatch_id mb) const {
    return order_.empty() ? mb : microbatch_id{order_[step.value()][mb.value()]};
  }
  /// Step 1 is the cell; step 0, before it, has weather of its own.
  std::uint64_t seed_of(step_id step) const { return cell_.seed + (step.value() == 0 ? 1000 : 0); }
  nanoseconds compute_part(step_id step, stage_id stage, task_kind kind, microbatch_id mb,
                           chunk_id chunk) const {
    const auto seed = seed_of(step);
    const bool even = cell_.seed % 2 == 0;
    double factor = kind == task_kind::forward  ? 1
                    : even                      ? 1
                    : kind == task_kind::weight ? 0.8
                                                : 1.2;
    if (cell_.work == workload::slow && stage.value() == slow_stage_) factor *= 1.3;
    if (cell_.work == workload::multimodal) {
      const bool encoder = stage.value() < cell_.shape.stages / 4;
      factor *= lognormal({seed, encoder ? 3U : 4U, mb.value()}, encoder ? 0.8 : 0.3);
    }
    if (!jitter_) return std::llround(factor * forward_ns / cell_.shape.chunks);
    const keyed_random random{
        seed, 5, stage.value(), static_cast<std::uint64_t>(kind), mb.value(), chunk.value()};
    if (cell_.compute_sigma > 0) factor *= lognormal(random, cell_.compute_sigma);
    if (cell_.spikes) {
      keyed_random spike{seed, 6, stage.value(), static_cast<std::uint64_t>(kind), mb.value()};
      factor *= (spike.uniform() < 0.01 ? 10 : 1) / 1.09;
    }
    return std::llround(factor * forward_ns / cell_.shape.chunks);
  }

  const cell cell_;
  const std::uint64_t slow_stage_;
  const bool jitter_;
  std::vector<std::vector<std::uint32_t>> order_;  ///< by step; empty: as loaded
};

std::vector<cell> cells_of(workload work) {
  std::vector<cell> cells;
  for (const std::uint32_t p : {4U, 8U, 16U, 32U})
    for (const std::uint32_t times : {1U, 2U, 4U, 8U})
      for (std::uint64_t seed = 0; seed < (p == 32 ? 2 : 5); ++seed)
        for (const double link : {0.0, 0.1, 0.3})
          for (int jitter = 0; jitter < 4; ++jitter) {
            if ((p == 32 && times == 8) || (jitter == 0 && link == 0)) continue;
            const double sigma = jitter == 0 ? 0 : jitter == 2 ? 0.6 : 0.3;
            cells.push_back(
                {work, {.stages = p, .microbatches = p * times}, seed, link, sigma, jitter == 3});
          }
  return cells;
}

struct slot_limit {
  std::string_view name;
  std::uint32_t (*of)(std::uint32_t stages, std::uint32_t stage);
};

constexpr slot_limit limits[] = {
    {"p", [](std::uint32_t p, std::uint32_t) { return p; }},
    {"1.5p", [](std::uint32_t p, std::uint32_t) { return (3 * p + 1) / 2; }},
    {"2p", [](std::uint32_t p, std::uint32_t) { return 2 * p; }},
    {"p-s", [](std::uint32_t p, std::uint32_t s) { return p - s; }},
};

template <class T>
T value_or_exit(result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "policies_bench: %s\n", r.message().c_str());
  std::exit(1);
}

simulate::plan plan_of(const cell& c, const slot_limit& limit) {
  simulate::plan plan;
  plan.shape = c.shape;
  for (std::uint32_t s = 0; s < c.shape.stages; ++s)
    if (const auto slots = limit.of(c.shape.stages, s); c.shape.chunks == 1)
      plan.limits.push_back({.slots = slots});
    else
      plan.limits.push_back({.activations = c.shape.chunks * slots});
  plan.steps = 2;
  return plan;
}

policy_factory maker_of(std::string_view policy, const pipeline_shape& shape) {
  return [set = value_or_exit(policies::registry().make(policy, shape))](
             const pipeline_shape&, stage_id s) { return set->make(s); };
}

/// The step of the cell.
simulate::step_report step_of(const cell& c, const slot_limit& limit, dispatch_rule rule,
                              admission order = admission::loaded) {
  auto plan = plan_of(c, limit);
  plan.rule = std::move(rule);
  return value_or_exit(simulate::run(plan, cell_costs{c, order})).steps.back();
}

simulate::step_report step_with(const cell& c, const slot_limit& limit, std::string_view policy,
                                dispatch_mode mode) {
  return step_of(c, limit, {maker_of(policy, c.shape), mode});
}

/// Natural logarithms of ratios.
class ratios {
 public:
  void add(nanoseconds before, nanoseconds after) { add(log_of(before, after)); }
  void add(double log) { logs_.push_back(log); }
  static double log_of(nanoseconds before, nanoseconds after) {
    return std::log(static_cast<double>(before) / static_cast<double>(after));
  }
  double mean() const {
    double sum = 0;
    for (const auto l : logs_) sum += l;
    return std::exp(sum / static_cast<double>(logs_.size()));
  }
  double quantile(double q) const { return std::exp(rrfp::quantile(logs_, q)); }

 private:
  std::vector<double> logs_;
};

/// Ratios of cells that differ in their seed alone are one setting.
class ratios_by_setting {
 public:
  void add(const cell& c, nanoseconds before, nanoseconds after) {
    const setting key{c.shape.stages, c.shape.microbatches, c.link_mean, c.compute_sigma, c.spikes};
    all_[key].push_back(ratios::log_of(before, after));
  }
  double quantile(double q) const {
    ratios means;
    for (const auto& [key, logs] : all_)
      means.add(std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size()));
    return means.quantile(q);
  }

 private:
  using setting = std::tuple<std::uint32_t, std::uint32_t, double, double, bool>;
  std::map<setting, std::vector<double>> all_;
};

void measure(std::string_view name, const std::vector<cell>& cells, const slot_limit& limit) {
  ratios bfw_gain, plus_gain, early_gain, sorted_gain, bound_gain;
  ratios plus_over_bfw, deep_plus_over_bfw;
  ratios_by_setting plus_by_setting;
  for (const auto& c : cells) {
    const auto in_order = step_with(c, limit, "one_f_one_b", dispatch_mode::in_order);
    const auto bfw = step_with(c, limit, "bfw", dispatch_mode::ready);
    const auto plus = step_with(c, limit, "bfw_plus", dispatch_mode::ready);
    const dispatch_rule early{.make_policy = maker_of("bfw_plus", c.shape),
                              .early_forwards = 2 * c.shape.stages};
    bfw_gain.add(in_order.makespan, bfw.makespan);
    plus_gain.add(in_order.makespan, plus.makespan);
    early_gain.add(in_order.makespan, step_of(c, limit, early).makespan);
    sorted_gain.add(in_order.makespan,
                    step_of(c, limit, early, admission::small_large_small).makespan);
    bound_gain.add(in_order.makespan, bfw.lower_bound);
    plus_over_bfw.add(bfw.makespan, plus.makespan);
    plus_by_setting.add(c, bfw.makespan, plus.makespan);
    if (c.shape.stages >= 8) deep_plus_over_bfw.add(bfw.makespan, plus.makespan);
  }
  std::printf("%-11.*s %-5.*s", static_cast<int>(name.size()), name.data(),
              static_cast<int>(limit.name.size()), limit.name.data());
  for (const auto gain : {bfw_gain.mean(), plus_gain.mean(), early_gain.mean(), sorted_gain.mean(),
                          bound_gain.mean(), plus_over_bfw.mean(), plus_over_bfw.quantile(0.01),
                          plus_by_setting.quantile(0.01), deep_plus_over_bfw.mean()})
    std::printf(" %8.3f", gain);
  std::printf("\n");
  std::fflush(stdout);
}

/// bfw_plus, but for F with the smaller chunk first, as bfw.
class smaller_chunk_first final : public policy {
 public:
  smaller_chunk_first(std::unique_ptr<policy> plus, std::unique_ptr<policy> bfw)
      : plus_(std::move(plus)), bfw_(std::move(bfw)) {}

  std::string_view name() const override { return "smaller_chunk_first"; }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return plus_->backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return plus_->lanes(); }
  std::uint32_t lane_of(const task& t) const override { return plus_->lane_of(t); }
  std::uint64_t rank(const task& t) const override {
    return (t.kind == task_kind::forward ? bfw_ : plus_)->rank(t);
  }
  lane_order order(const stage_view& now) const override { return plus_->order(now); }
  std::uint32_t weight_pieces() const override { return plus_->weight_pieces(); }
  void reset() override { plus_->reset(); }
  void launched(const task& t) override { plus_->launched(t); }
  void waited() override { plus_->waited(); }

 private:
  const std::unique_ptr<policy> plus_;
  const std::unique_ptr<policy> bfw_;
};

/// What each part of bfw_plus gains over bfw; the last one with placement v.
void measure_parts(const slot_limit& limit) {
  ratios order, pieces, both, chunk;
  for (auto c : cells_of(workload::balanced)) {
    const auto time = [&](policy_factory make, std::uint32_t weight_pieces) {
      return step_of(c, limit, {.make_policy = std::move(make), .weight_pieces = weight_pieces})
          .makespan;
    };
    const auto bfw = time(maker_of("bfw", c.shape), 0);
    order.add(bfw, time(maker_of("bfw_plus", c.shape), 1));
    pieces.add(bfw, time(maker_of("bfw", c.shape), 4));
    both.add(bfw, time(maker_of("bfw_plus", c.shape), 0));
    if (c.link_mean != 0.1 || c.compute_sigma == 0) continue;
    c.shape.chunks = 2;
    c.shape.layout = placement::v;
    const auto plus = maker_of("bfw_plus", c.shape);
    const auto smaller = [&](const pipeline_shape& shape, stage_id s) {
      return std::make_unique<smaller_chunk_first>(plus(shape, s),
                                                   maker_of("bfw", shape)(shape, s));
    };
    chunk.add(time(smaller, 0), time(plus, 0));
  }
  std::printf("parts       %-5.*s %8.3f %8.3f %8.3f %8.3f\n", static_cast<int>(limit.name.size()),
              limit.name.data(), order.mean(), pieces.mean(), both.mean(), chunk.mean());
  std::fflush(stdout);
}

void measure_v(const slot_limit& limit) {
  ratios in_order, ready;
  for (auto c : cells_of(workload::balanced)) {
    if (c.link_mean != 0.1 || c.compute_sigma == 0) continue;
    const auto linear = step_with(c, limit, "bfw", dispatch_mode::ready).makespan;
    c.shape.chunks = 2;
    c.shape.layout = placement::v;
    in_order.add(linear, step_with(c, limit, "zb_v", dispatch_mode::in_order).makespan);
    ready.add(linear, step_with(c, limit, "bfw_plus", dispatch_mode::ready).makespan);
  }
  std::printf("v           %-5.*s %13.3f %9.3f\n", static_cast<int>(limit.name.size()),
              limit.name.data(), in_order.mean(), ready.mean());
}

bool fits(const policy_set& fixed, const simulate::plan& plan) {
  for (std::uint32_t s = 0; s < plan.shape.stages; ++s)
    if (!check_slots(plan.shape, stage_id{s}, (*fixed.sequences())[s], plan.limits[s]))
      return false;
  return true;
}

/// Without jitter: the worst ratio of the best schedule in order over bfw_plus.
void measure_calm(const slot_limit& limit) {
  double worst = 10;
  int cells = 0, lost = 0;
  for (const std::uint32_t p : {2U, 4U, 8U, 16U, 32U})
    for (const std::uint32_t times : {1U, 2U, 4U, 8U})
      for (const std::uint64_t seed : {0U, 1U})
        for (const double link : {0.0, 0.1, 0.3, 0.6, 1.2})
          for (const auto work : {workload::balanced, workload::slow}) {
            const cell c{work, {.stages = p, .microbatches = p * times}, seed, link, 0, false,
                         false};
            nanoseconds best = std::numeric_limits<nanoseconds>::max();
            for (const auto* name : {"one_f_one_b", "zb_h1", "zb_h2"}) {
              const auto set = policies::registry().make(name, c.shape);
              if (!set || !fits(**set, plan_of(c, limit))) continue;
              best = std::min(best, step_with(c, limit, name, dispatch_mode::in_order).makespan);
            }
            const auto plus = step_with(c, limit, "bfw_plus", dispatch_mode::ready).makespan;
            const auto ratio = static_cast<double>(best) / static_cast<double>(plus);
            worst = std::min(worst, ratio);
            ++cells;
            lost += ratio < 0.99;
          }
  std::printf("no jitter   %-5.*s worst best in order / bfw_plus %.3f, below .99 in %d of %d\n",
              static_cast<int>(limit.name.size()), limit.name.data(), worst, lost, cells);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  const auto is_wanted = [&](std::string_view row) { return row.starts_with(wanted); };
  std::printf(
      "workload    slots      bfw bfw_plus    early   sorted    bound plus/bfw       1%%  1%% set."
      "   p >= 8\n");
  for (const auto& [name, work] : {std::pair{std::string_view{"balanced"}, workload::balanced},
                                   std::pair{std::string_view{"slow"}, workload::slow},
                                   std::pair{std::string_view{"multimodal"}, workload::multimodal}})
    for (const auto& limit : limits)
      if (is_wanted(name)) measure(name, cells_of(work), limit);
  std::vector<cell> alike;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    alike.push_back({workload::multimodal, {.stages = 16, .microbatches = 64}, seed, 0.3, 0.3});
  for (const auto& limit : limits)
    if (is_wanted("16 x 64")) measure("16 x 64", alike, limit);
  if (is_wanted("no jitter"))
    for (const auto& limit : limits) measure_calm(limit);
  if (is_wanted("parts")) {
    std::printf("            slots    order   pieces     both  larger chunk\n");
    for (const auto& limit : limits) measure_parts(limit);
  }
  if (!is_wanted("v")) return 0;
  std::printf("placement   slots zb_v in order  bfw_plus\n");
  for (const auto& limit : std::span{limits}.first(3)) measure_v(limit);
}
