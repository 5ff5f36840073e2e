#include <cstdlib>
#include <memory>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/job/node_places.hpp>

#include "../common/console.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "framework.hpp"
#include "metrics_server.hpp"
#include "report_file.hpp"
#include "training.hpp"

namespace rrfp::apps {

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
  const auto loaded = load(options, place->node == node_id{0} && !join.launched);
  if (!loaded) return end_with(loaded.failure());
  const auto runs = job::variants(*loaded);
  if (auto enough = actors::check_threads(runs[0], place->nodes); !enough)
    return end_with(enough.failure());
  auto reports = reports_folder(options);
  if (!reports) return end_with(reports.failure());
  metrics::board board;
  const training_options outputs{options.json, options.trace, *reports, &board, options.program};
  auto checked =
      check_training(runs, place->node == node_id{0} ? outputs : training_options{}, place->nodes);
  if (!checked) return end_with(checked.failure());
  std::unique_ptr<metrics_server> server;
  if (!options.metrics.empty()) {
    const auto at = parse_http_address(options.metrics);
    if (!at) return end_with(at.failure());
    auto opened = metrics_server::open(*at, place->node, board, loaded->recovery.max_restarts > 0);
    if (!opened) return end_with(opened.failure());
    server = std::move(*opened);
  }
  const auto places = plan::node_places::make(runs[0], place->nodes);
  const auto framework = make_framework();
  training course{
      runs, outputs, interrupts, {join, place->node, place->nodes, places->describe(place->node)}};
  // A launcher starts a node again only when its process has ended, so that one may join again.
  const auto outcome = actors::run_job(
      {*loaded, *std::move(checked), *place, framework.get(), !join.launched}, course);
  return course.end(*loaded, outcome);
}

}  // namespace rrfp::apps
