#include <memory>
#include <optional>

#include <rrfp/actors/job_cluster.hpp>

#include "../common/console.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "local_launch.hpp"
#include "metrics_server.hpp"
#include "report_file.hpp"
#include "training.hpp"

namespace rrfp::apps {

int run_command(const command_options& options) {
  interrupt_watch interrupts;
  const auto loaded = load(options);
  if (!loaded) return end_with(loaded.failure());
  const auto runs = job::variants(*loaded);
  if (auto enough = actors::check_threads(runs[0], options.local_nodes); !enough)
    return end_with(enough.failure());
  auto reports = reports_folder(options);
  if (!reports) return end_with(reports.failure());
  metrics::board board;
  const training_options outputs{options.json, options.trace, *reports, &board, options.program};
  auto checked = check_training(runs, outputs, options.local_nodes);
  if (!checked) return end_with(checked.failure());
  std::optional<http_address> at;
  if (!options.metrics.empty()) {
    auto parsed = parse_http_address(options.metrics);
    if (!parsed) return end_with(parsed.failure());
    at = std::move(*parsed);
  }
  if (options.local_nodes > 1)
    if (auto enough = actors::check_descriptors(options.local_nodes); !enough)
      return end_with(enough.failure());
  if (options.local_nodes > 1) {
    checked->clear();  // each node opens its own
    return launch_nodes(options, *loaded, at, *reports, interrupts);
  }
  std::unique_ptr<metrics_server> server;
  if (at) {
    auto opened = metrics_server::open(*at, node_id{0}, board);
    if (!opened) return end_with(opened.failure());
    server = std::move(*opened);
  }
  training course{runs, outputs, interrupts};
  return course.end(*loaded, actors::run_job({*loaded, *std::move(checked), {}, {}, {}}, course));
}

}  // namespace rrfp::apps
