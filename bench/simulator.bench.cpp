/// Measures the simulator: events per second on one core, and the largest pipeline that must run.
///
///   cmake --preset release && cmake --build --preset release --target simulator_bench
///   build/release/bin/simulator_bench          # 16 stages x 256 microbatches
///   build/release/bin/simulator_bench large    # 1,024 x 4,096, about 0.6 GiB of memory
///
/// An event is any input to a core: a step, an arrival, a finish, or a decide. Seconds are CPU
/// time, so that other work on the machine does not count. The result is that of the fastest of
/// several runs (of one, if large), including the construction of the cores.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/stage_costs.hpp>

namespace {

using namespace rrfp;

struct bench_case {
  std::string_view policy;
  dispatch_mode mode;
  std::uint32_t slots;  ///< 0: no limit
  bool jitter;
};

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

template <class T>
T value_or_exit(result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "%s\n", r.message().c_str());
  std::exit(1);
}

simulate::stage_costs costs_of(const pipeline_shape& shape, bool jitter) {
  simulate::stage_costs_options options;
  if (jitter) {
    options.jitter.compute = simulate::compute_jitter::lognormal;
    options.jitter.link = simulate::link_jitter::exponential;
    options.jitter.link_mean_ms = 0.3;
  }
  return simulate::stage_costs(shape, options);
}

void measure(const pipeline_shape& shape, const bench_case& c, int repeats) {
  const auto set = value_or_exit(policies::registry().make(c.policy, shape));
  const auto costs = costs_of(shape, c.jitter);
  simulate::plan plan;
  plan.shape = shape;
  plan.limit.slots = c.slots;
  plan.rule = {[&](const pipeline_shape&, stage_id s) { return set->make(s); }, c.mode};
  double best_s = 0;
  std::uint64_t events = 0;
  double makespan_ms = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::clock();
    const auto ran = value_or_exit(simulate::run(plan, costs));
    const auto took_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    if (i == 0 || took_s < best_s) best_s = took_s;
    events = ran.events;
    makespan_ms = static_cast<double>(ran.makespan) / 1e6;
  }
  std::printf(
      "%-12s %-9s %-6s %5u x %-5u %9.3f M events %9.4f s %7.2f M events/s"
      "  %11.1f ms simulated  peak %6.0f MiB\n",
      c.policy.data(), name(c.mode).data(), c.jitter ? "jitter" : "none", shape.stages,
      shape.microbatches, static_cast<double>(events) / 1e6, best_s,
      static_cast<double>(events) / 1e6 / best_s, makespan_ms, peak_mib());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const bool large = argc > 1 && std::string_view{argv[1]} == "large";
  if (argc > 2 || (argc == 2 && !large)) {
    std::fprintf(stderr, "usage: simulator_bench [large]\n");
    return 2;
  }
  const pipeline_shape shape{large ? 1024U : 16U, 1, large ? 4096U : 256U, placement::linear};
  const auto slots = 2 * shape.stages;
  for (const bool jitter : {false, true}) {
    measure(shape, {"one_f_one_b", dispatch_mode::in_order, 0, jitter}, large ? 1 : 20);
    measure(shape, {"bf", dispatch_mode::ready, slots, jitter}, large ? 1 : 20);
    measure(shape, {"bfw", dispatch_mode::ready, slots, jitter}, large ? 1 : 20);
  }
  return 0;
}
