/// Measures what a run pays for its counters, and for being able to report a hang.
///
///   scripts/build release metrics_bench
///   build/release/bin/metrics_bench [--task-us T] [--scrape PORT]
///
/// writes   all that supervisor and rank write for one task (arrival, decision, launch, finish,
///          messages in and out), including the ledger for reports and two clock readings. Its
///          share of a task of T microseconds (default 1,000; those of the quickstart take about
///          5,000) that keeps one rank busy is an upper bound on the share of a step.
/// scrape   with --scrape, for a running `rrfp-node run ... --metrics :PORT`: duration of one
///          request to /metrics over loopback. Nothing is collected between requests.
///
/// Goal: writes below 0.5 % of a step.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <rrfp/actors/stage/stage_ledger.hpp>
#include <rrfp/metrics/run_counters.hpp>

#include "http.hpp"

namespace rrfp::actors {
namespace {

using clock_type = std::chrono::steady_clock;

constexpr std::uint32_t microbatches = 64;
constexpr int steps = 4000;

double seconds_since(clock_type::time_point begun) {
  return std::chrono::duration<double>(clock_type::now() - begun).count();
}

/// Does the writes of stage_supervisor and tp_rank, for F and then BW of each microbatch.
void write_task(const task& t, std::uint64_t seq, stage_ledger& ledger,
                metrics::run_counters& counters) {
  auto& stage = counters.stages.front();
  auto& rank = counters.ranks.front();
  const auto now = metrics::steady_now();
  rank.received.add();
  rank.received_bytes.add(4096);
  rank.inputs_waiting.set(1);
  if (ledger.arrive({t.kind == task_kind::forward ? task_kind::forward : task_kind::backward, t.mb,
                     t.chunk, rank_id{0}},
                    now))
    stage.tp_waits.observe(0);
  const launch l{launch_seq{seq}, t, {choice::skipped_not_ready, 2}, {}};
  ledger.decide(l, now);
  stage.decisions[static_cast<std::size_t>(l.why.why)].add();
  stage.skipped_hints.add(l.why.skipped);
  for (int i = 0; i < 2; ++i) {  // after the decision, and after the finish
    stage.ready.set(3);
    stage.outstanding.set(1);
    stage.slots.set(4);
    stage.slot_bytes.set(1 << 20);
  }
  rank.inputs_waiting.set(0);
  rank.sent.add();
  rank.sent_bytes.add(4096);
  stage.tasks[static_cast<std::size_t>(t.kind)].observe(metrics::steady_now() - now);
  counters.note_progress();
}

double nanoseconds_a_task() {
  stage_config config;
  config.shape = {4, 1, microbatches, placement::linear};
  stage_ledger ledger{config};
  const auto counters = std::make_unique<metrics::run_counters>();
  counters->stages.emplace_back();
  counters->ranks.emplace_back();
  std::vector<double> times;
  std::uint64_t seq = 0;
  for (int s = 0; s < steps; ++s) {
    const auto begun = clock_type::now();
    ledger.begin(step_id{static_cast<std::uint64_t>(s)}, microbatches);
    for (const auto kind : {task_kind::forward, task_kind::backward_weight})
      for (std::uint32_t mb = 0; mb < microbatches; ++mb)
        write_task({kind, microbatch_id{mb}, chunk_id{0}}, seq++, ledger, *counters);
    times.push_back(seconds_since(begun) * 1e9 / (2 * microbatches));
  }
  std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
  return times[steps / 2];
}

void scrape(std::uint16_t port) {
  constexpr int requests = 50;
  std::vector<double> times;
  std::size_t bytes = 0;
  for (int i = 0; i < requests; ++i) {
    const auto begun = clock_type::now();
    const auto page = test::get(port, "/metrics");
    times.push_back(seconds_since(begun) * 1e3);
    if (page.code != 200) {
      std::fprintf(stderr, "metrics_bench: no server answers /metrics on 127.0.0.1:%u\n", port);
      std::exit(2);
    }
    bytes = page.body.size();
  }
  std::nth_element(times.begin(), times.begin() + requests / 2, times.end());
  std::printf("scrape   %.2f ms, %zu bytes\n", times[requests / 2], bytes);
}

}  // namespace
}  // namespace rrfp::actors

int main(int argc, char** argv) {
  double task_us = 1000;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--task-us") == 0) task_us = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--scrape") == 0)
      rrfp::actors::scrape(static_cast<std::uint16_t>(std::atoi(argv[i + 1])));
  }
  const auto ns = rrfp::actors::nanoseconds_a_task();
  std::printf("writes   %.0f ns a task, %.4f %% of a task of %.0f us\n", ns, ns / task_us / 10,
              task_us);
  return 0;
}
