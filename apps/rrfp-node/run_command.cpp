#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include <rrfp/actors/job_cluster.hpp>

#include "../common/console.hpp"
#include "commands.hpp"
#include "local_launch.hpp"
#include "metrics_server.hpp"
#include "refuse.hpp"
#include "report_file.hpp"
#include "training.hpp"

namespace rrfp::apps {

int run_command(const command_options& options) {
  interrupt_watch interrupts;
  const auto loaded = job::load_job(options.job, options.settings);
  if (!loaded) return refuse(loaded.message());
  for (const auto& note : loaded->notes) print_error("rrfp-node: {}\n", note);
  const auto runs = job::variants(*loaded);
  auto reports = reports_folder(options);
  if (!reports) return refuse(reports.message());
  metrics::board board;
  const training_options outputs{options.json, options.trace, *reports, &board};
  if (auto can = check_training(runs, outputs, options.local_nodes); !can)
    return refuse(can.message());
  std::optional<http_address> at;
  if (!options.metrics.empty()) {
    auto parsed = parse_http_address(options.metrics);
    if (!parsed) return refuse(parsed.message());
    at = std::move(*parsed);
  }
  if (options.local_nodes > 1)
    if (auto enough = actors::check_descriptors(options.local_nodes); !enough)
      return refuse(enough.message());
  if (options.local_nodes > 1) return launch_nodes(options, *loaded, at, *reports, interrupts);
  std::unique_ptr<metrics_server> server;
  if (at) {
    auto opened = metrics_server::open(*at, node_id{0}, board);
    if (!opened) return refuse(opened.message());
    server = std::move(*opened);
  }
  return train(runs, outputs, interrupts, {});
}

}  // namespace rrfp::apps
