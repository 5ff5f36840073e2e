/// What packing by cost and readiness give together on samples of different lengths: simulated
/// steps of a pipeline with replicas, for the lengths of documents, of chats and of images.
///
///   cmake --preset release && cmake --build build/release --target packing_bench
///   build/release/bin/packing_bench              # a table
///   build/release/bin/packing_bench --csv        # all rows as CSV
///
/// A step has `microbatches` * `tokens` tokens for each replica, and each microbatch at most
/// `tokens`. Packings:
///
///   padded   every sample has the length of the longest one of its step, as fixed shapes require;
///            a microbatch holds as many as fit
///   tokens   samples in the order of the data, until a microbatch is full; dealt out to the
///            replicas in turn
///   cost     rrfp.pack(): equal work over microbatches and replicas, outliers wait up to 8 steps
///
/// Each packing runs 1F1B in order, and BFW+ by readiness with as many slots on every stage as 1F1B
/// has on the first, so that no device needs more memory; "sorted" admits the smallest microbatches
/// at both ends of a step. Messages do not block. Work is FLOPs of Llama 3 8B at 40 %
/// of 989 TFLOP/s a device, messages cross 50 GB/s, and tasks and messages vary as the paper
/// measured them. A step ends when the slowest replica does. The figures are times of all steps
/// divided by those of `tokens` in order.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/keyed_random.hpp>
#include <rrfp/simulate/stage_costs.hpp>
#include <rrfp/workload/packer.hpp>
#include <rrfp/workload/presets.hpp>
#include <rrfp/workload/work_model.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::workload;
using random_source = weather::keyed_random;

constexpr double flops_of_device = 0.4 * 989e12;  // a second
constexpr double bytes_a_second = 50e9;
constexpr double latency_ms = 0.02;
constexpr std::uint32_t microbatches_of_replica = 32;
constexpr std::uint64_t tokens_max = 32'768;
constexpr std::uint64_t seeds = 3;
constexpr std::size_t steps = 12;

template <class T>
T value_or_exit(result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "packing_bench: %s\n", r.message().c_str());
  std::exit(1);
}

struct data_kind {
  std::string_view name;
  std::function<sample_work(random_source&, const work_model&)> draw;
};

sample_work text(const work_model& model, double tokens) {
  const auto n = std::clamp(std::round(tokens), 16.0, static_cast<double>(tokens_max));
  return {static_cast<std::uint64_t>(n), model.work_of(n)};
}

double lognormal(random_source& random, double median, double sigma) {
  return median * std::exp(sigma * random.normal());
}

/// P(tokens > x) = (least / x)^exponent.
double pareto(random_source& random, double least, double exponent) {
  return least * std::pow(1 - random.uniform(), -1 / exponent);
}

const std::vector<data_kind>& kinds() {
  static const std::vector<data_kind> all{
      // Web pages and code: most are short, a few fill the context.
      {"documents", [](auto& r, auto& m) { return text(m, pareto(r, 600, 1.05)); }},
      {"chats",
       [](auto& r, auto& m) {
         const auto turns = std::min(std::floor(pareto(r, 1, 1.3)), 60.0);
         double tokens = 0;
         for (int i = 0; i < turns; ++i) tokens += lognormal(r, 250, 1.1);
         return text(m, tokens);
       }},
      {"images",
       [](auto& r, auto& m) {
         const std::vector<double> patches(static_cast<std::size_t>(r.uniform() * 9), 1024);
         const auto tokens =
             std::round(lognormal(r, 200, 0.9)) + 256.0 * static_cast<double>(patches.size());
         return sample_work{static_cast<std::uint64_t>(tokens), m.work_of(tokens, patches)};
       }},
  };
  return all;
}

/// The work and the tokens of the microbatches of a replica in a step.
using microbatches = std::vector<sample_work>;
using packed = std::vector<std::vector<microbatches>>;  ///< by step and replica

sample_work sum_of(const std::vector<sample_work>& samples, const auto& indices) {
  sample_work sum;
  for (const auto i : indices) {
    sum.tokens += samples[i].tokens;
    sum.work += samples[i].work;
  }
  return sum;
}

/// The samples of a step, from those that have not been in one.
std::size_t end_of_step(const std::vector<sample_work>& samples, std::size_t first,
                        std::uint64_t tokens) {
  for (std::uint64_t sum = 0; first < samples.size(); ++first)
    if ((sum += samples[first].tokens) > tokens) break;
  return first;
}

/// `cut`: the microbatches of the samples of a step, which are dealt out to the replicas in turn.
packed dealt(const std::vector<sample_work>& samples, std::uint32_t replicas,
             std::uint64_t tokens_of_step, auto cut) {
  packed all;
  for (std::size_t first = 0; first < samples.size();) {
    const auto end = end_of_step(samples, first, tokens_of_step);
    const microbatches made = cut(std::span{samples}.subspan(first, end - first));
    auto& step = all.emplace_back(replicas);
    for (std::size_t i = 0; i < made.size(); ++i) step[i % replicas].push_back(made[i]);
    first = end;
  }
  return all;
}

packed by_tokens(const std::vector<sample_work>& samples, std::uint32_t replicas,
                 std::uint64_t tokens_of_step) {
  return dealt(samples, replicas, tokens_of_step, [](std::span<const sample_work> of_step) {
    microbatches made(1);
    for (const auto& sample : of_step) {
      if (made.back().tokens + sample.tokens > tokens_max) made.emplace_back();
      made.back().tokens += sample.tokens;
      made.back().work += sample.work;
    }
    return made;
  });
}

packed padded(const std::vector<sample_work>& samples, std::uint32_t replicas,
              std::uint64_t tokens_of_step) {
  return dealt(samples, replicas, tokens_of_step, [](std::span<const sample_work> of_step) {
    const auto longest =
        *std::max_element(of_step.begin(), of_step.end(),
                          [](const auto& a, const auto& b) { return a.work < b.work; });
    const auto rows = std::max<std::size_t>(tokens_max / longest.tokens, 1);
    microbatches made;
    for (std::size_t first = 0; first < of_step.size(); first += rows) {
      const auto here = std::min(rows, of_step.size() - first);
      made.push_back({longest.tokens * here, longest.work * static_cast<double>(here)});
    }
    return made;
  });
}

packed by_cost(const std::vector<sample_work>& samples, std::uint32_t replicas,
               std::uint64_t tokens_of_step) {
  auto packing = value_or_exit(packer::make(samples, {.max_tokens = tokens_max,
                                                      .microbatches = microbatches_of_replica,
                                                      .replicas = replicas,
                                                      .batch_tokens = tokens_of_step,
                                                      .delay = 8,
                                                      .shuffle = false}));
  packed all;
  while (packing.position().epoch == 0) {
    auto& step = all.emplace_back();
    for (const auto& parts : packing.next().replicas) {
      auto& replica = step.emplace_back();
      for (const auto& part : parts) replica.push_back(sum_of(samples, part));
    }
    step.resize(replicas);
  }
  return all;
}

class work_costs final : public simulate::microbatch_costs {
 public:
  work_costs(const packed& all, std::uint32_t replica, std::uint32_t stages, std::uint32_t hidden)
      : all_(all), replica_(replica), stages_(stages), hidden_(hidden) {}

  double task_ms(step_id step, stage_id, task_kind, microbatch_id mb) const override {
    // F, B and W cost about the same.
    return 1e3 * at(step, mb).work / 3 / stages_ / flops_of_device;
  }
  double message_ms(step_id step, stage_id lower, microbatch_id mb) const override {
    return latency_ms + 1e3 * static_cast<double>(message_bytes(step, lower, mb)) / bytes_a_second;
  }
  std::uint64_t activation_bytes(step_id step, stage_id, microbatch_id mb) const override {
    return at(step, mb).tokens;
  }
  std::uint64_t message_bytes(step_id step, stage_id, microbatch_id mb) const override {
    return at(step, mb).tokens * hidden_ * 2;
  }

 private:
  /// Nothing beyond those of the step.
  sample_work at(step_id step, microbatch_id mb) const {
    const auto& of_step = all_[step.value()][replica_];
    return mb.value() < of_step.size() ? of_step[mb.value()] : sample_work{};
  }

  const packed& all_;
  const std::uint32_t replica_, stages_, hidden_;
};

struct way {
  std::string_view name;
  std::string_view policy;
  dispatch_mode mode;
};
constexpr way in_order{"1F1B in order", "one_f_one_b", dispatch_mode::in_order};
constexpr way ready{"BFW+ ready", "bfw_plus", dispatch_mode::ready};

/// Seconds of all steps.
double simulated(const packed& all, std::uint32_t stages, const way& how, std::uint64_t seed) {
  std::vector<double> of_step(all.size());
  const auto replicas = static_cast<std::uint32_t>(all.front().size());
  for (std::uint32_t d = 0; d < replicas; ++d) {
    std::uint32_t most = 1;
    for (const auto& step : all) most = std::max(most, static_cast<std::uint32_t>(step[d].size()));
    const pipeline_shape shape{stages, 1, most, placement::linear};
    simulate::stage_costs_options options;
    options.by_microbatch = std::make_shared<work_costs>(all, d, stages, 4096);
    const auto level = weather::conditions_of("measured");
    static_cast<weather::conditions&>(options.jitter) = level.value();
    options.jitter.seed = seed + (std::uint64_t{d} << 32);
    const auto costs = value_or_exit(simulate::stage_costs::make(shape, options));
    simulate::plan plan;
    plan.shape = shape;
    plan.steps = all.size();
    plan.microbatches = [&](step_id step) {
      return static_cast<std::uint32_t>(all[step.value()][d].size());
    };
    plan.rule.mode = how.mode;
    plan.rule.make_policy = [&](const pipeline_shape& of, stage_id s) {
      return value_or_exit(policies::registry().make(how.policy, of))->make(s);
    };
    plan.limit.slots = stages;
    const auto ran = value_or_exit(simulate::run(plan, costs));
    for (std::size_t i = 0; i < all.size(); ++i)
      of_step[i] = std::max(of_step[i], static_cast<double>(ran.steps[i].makespan) * 1e-9);
  }
  return std::accumulate(of_step.begin(), of_step.end(), 0.0);
}

/// The microbatches of each replica in the order of admission, which readiness may choose.
packed small_large_small(packed all) {
  for (auto& step : all)
    for (auto& replica : step) {
      std::vector<double> work;
      for (const auto& mb : replica) work.push_back(mb.work);
      microbatches admitted;
      for (const auto i : admission_order(admission::small_large_small, work))
        admitted.push_back(replica[i]);
      replica = std::move(admitted);
    }
  return all;
}

/// The work of the largest microbatch over the mean, and that of the largest replica, as means
/// over the steps; and microbatches a replica. The table shows those of the last seed.
struct balance {
  double microbatches = 0, replicas = 0, count = 0;
};

balance balance_of(const packed& all) {
  balance b;
  for (const auto& step : all) {
    std::vector<double> work, of_replica;
    for (const auto& replica : step) {
      of_replica.push_back(0);
      for (const auto& mb : replica) {
        work.push_back(mb.work);
        of_replica.back() += mb.work;
      }
    }
    b.microbatches += imbalance(work);
    b.replicas += imbalance(of_replica);
    b.count += static_cast<double>(work.size()) / static_cast<double>(step.size());
  }
  const auto n = static_cast<double>(all.size());
  return {b.microbatches / n, b.replicas / n, b.count / n};
}

void measure(const data_kind& kind, std::uint32_t stages, std::uint32_t replicas, bool csv) {
  const auto model = training_flops(preset("llama3-8b-internvit").value());
  const auto tokens_of_step = replicas * microbatches_of_replica * tokens_max * 9 / 10;
  struct packing {
    std::string_view name;
    packed (*make)(const std::vector<sample_work>&, std::uint32_t, std::uint64_t);
  };
  constexpr packing packings[] = {{"padded", padded}, {"tokens", by_tokens}, {"cost", by_cost}};
  double seconds[3][3] = {};
  balance balances[3];
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    random_source random{seed + 7};
    std::vector<sample_work> samples;
    for (std::uint64_t tokens = 0; tokens < steps * tokens_of_step;) {
      samples.push_back(kind.draw(random, model));
      tokens += samples.back().tokens;
    }
    for (int p = 0; p < 3; ++p) {
      const auto all = packings[p].make(samples, replicas, tokens_of_step);
      balances[p] = balance_of(all);
      seconds[p][0] += simulated(all, stages, in_order, seed);
      seconds[p][1] += simulated(all, stages, ready, seed);
      seconds[p][2] += simulated(small_large_small(all), stages, ready, seed);
    }
  }
  constexpr std::string_view names[] = {in_order.name, ready.name, "BFW+ sorted"};
  const auto base = seconds[1][0];
  for (int p = 0; p < 3; ++p)
    for (int r = 0; r < 3; ++r)
      std::printf(csv ? "%s,%u,%u,%s,%s,%.1f,%.3f,%.3f,%.4f\n"
                      : "%-10s %6u %8u  %-7s %-14s %6.1f %8.3f %8.3f %8.3f\n",
                  std::string{kind.name}.c_str(), stages, replicas,
                  std::string{packings[p].name}.c_str(), std::string{names[r]}.c_str(),
                  balances[p].count, balances[p].microbatches, balances[p].replicas,
                  base / seconds[p][r]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const bool csv = argc > 1 && std::string_view{argv[1]} == "--csv";
  std::printf(
      csv ? "data,stages,replicas,packing,dispatch,microbatches,mb/mean,replica/mean,speedup\n"
          : "data       stages replicas  packing dispatch           mb  mb/mean repl/mean  "
            "speedup\n");
  for (const auto& kind : kinds())
    for (const auto& [stages, replicas] :
         {std::pair{4U, 1U}, {8U, 1U}, {8U, 4U}, {16U, 4U}, {32U, 8U}})
      measure(kind, stages, replicas, csv);
}
