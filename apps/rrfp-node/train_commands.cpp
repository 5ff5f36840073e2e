/// The commands that train: `run` on this machine, `join` as one of several nodes.
#include <cstdlib>
#include <optional>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/job/node_places.hpp>
#include <rrfp/policies/registry.hpp>

#include "../common/console.hpp"
#include "../common/output_file.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "local_launch.hpp"
#include "metrics_server.hpp"
#include "report_file.hpp"
#include "training.hpp"

namespace rrfp::apps {

namespace {

/// A job of the command line, read and checked.
struct ready_job {
  job::job job;
  command_options options;  ///< `reports` names the folder, if there is one
  std::vector<actors::opened_run> runs;
  std::optional<http_address> metrics;
};

/// Opens and checks everything that can be checked before training: devices, data, plan,
/// checkpoints, and the placement on `nodes` nodes.
result<std::vector<actors::opened_run>> open_runs(const std::vector<job::job>& runs,
                                                  std::uint32_t nodes) {
  const auto framework = make_framework();
  std::vector<actors::opened_run> opened;
  for (const auto& j : runs) {
    auto model = framework->open(j);
    if (!model) return model.failure();
    auto setup = actors::make_session_setup(j, policies::registry(), model->get());
    if (!setup) return setup.failure();
    // Checksums take long; they are verified when the run starts.
    if (setup->checkpoint)
      if (auto may = actors::choose_resume(j, *setup->checkpoint, checkpoint::verification::sizes);
          !may)
        return may.failure();
    if (auto places = job::node_places::make(j, nodes); !places) return places.failure();
    opened.push_back({j, std::move(*model), std::move(*setup)});
  }
  return opened;
}

/// `nodes`: of the job. `writes`: this process may write --json and --trace, and tells how the job
/// was read if `tells_notes`.
result<ready_job> prepare(const command_options& options, std::uint32_t nodes, bool writes,
                          bool tells_notes) {
  auto loaded = load(options, tells_notes);
  if (!loaded) return loaded.failure();
  ready_job ready{*std::move(loaded), options, {}, {}};
  const auto runs = job::variants(ready.job);
  if (auto enough = actors::check_threads(runs[0], nodes); !enough) return enough.failure();
  auto reports = reports_folder(options);
  if (!reports) return reports.failure();
  ready.options.reports = *std::move(reports);
  if (writes) {
    if (auto apart = check_distinct({ready.job.source},
                                    {{"--json", options.json}, {"--trace", options.trace}});
        !apart)
      return apart.failure();
    if (auto can = check_output("--trace", options.trace); !can) return can.failure();
  }
  auto opened = open_runs(runs, nodes);
  if (!opened) return opened.failure();
  ready.runs = *std::move(opened);
  if (!options.metrics.empty()) {
    auto at = parse_http_address(options.metrics);
    if (!at) return at.failure();
    ready.metrics = *std::move(at);
  }
  return ready;
}

/// `place`: nothing if this process is the only one.
int train(ready_job ready, interrupt_watch& interrupts, node_seat seat,
          std::optional<actors::launch_place> place) {
  metrics::board board;
  std::unique_ptr<metrics_server> server;
  if (ready.metrics) {
    const bool waits = place && ready.job.recovery.max_restarts > 0;
    auto opened = metrics_server::open(*ready.metrics, seat.node, board, waits);
    if (!opened) return end_with(opened.failure());
    server = *std::move(opened);
  }
  const auto framework = make_framework();
  // A launcher starts a node again only when its process has ended, so that one may join again.
  const bool is_fenced = !seat.join.launched;
  training course{ready.runs[0].options.recovery, ready.options, board, interrupts,
                  std::move(seat)};
  const auto outcome = actors::run_job(
      {ready.job, std::move(ready.runs), std::move(place), framework.get(), is_fenced}, course);
  return course.end(ready.job, outcome);
}

}  // namespace

int run_command(const command_options& options) {
  interrupt_watch interrupts;
  auto ready = prepare(options, options.local_nodes, true, true);
  if (!ready) return end_with(ready.failure());
  if (options.local_nodes == 1) return train(*std::move(ready), interrupts, {}, {});
  if (auto enough = actors::check_descriptors(options.local_nodes); !enough)
    return end_with(enough.failure());
  ready->runs.clear();  // each node opens its own
  return launch_nodes(ready->options, ready->job, ready->metrics, interrupts);
}

int join_command(const command_options& options, const join_options& join) {
  interrupt_watch interrupts;
  const auto place = actors::resolve_launch(
      join.place, [](const char* name) -> const char* { return std::getenv(name); });
  if (!place) return end_with(place.failure());
  if (!place->has_nodes)
    return end_with(
        {"--nnodes: expected the number of nodes, here or in WORLD_SIZE, NNODES, GROUP_WORLD_SIZE "
         "or "
         "SLURM_NNODES, got none; `rrfp-node run` trains on this machine alone"});
  const bool is_first = place->node == node_id{0};
  auto ready = prepare(options, place->nodes, is_first, is_first && !join.launched);
  if (!ready) return end_with(ready.failure());
  const auto places = job::node_places::make(ready->runs[0].options, place->nodes);
  return train(*std::move(ready), interrupts,
               {join, place->node, place->nodes, places->describe(place->node)}, *place);
}

}  // namespace rrfp::apps
