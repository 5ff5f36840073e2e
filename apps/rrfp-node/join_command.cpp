#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stop_token>

#include <fmt/format.h>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/policies/registry.hpp>

#include "../common/console.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "metrics_server.hpp"
#include "report_file.hpp"
#include "training.hpp"

namespace rrfp::apps {

namespace {

/// How long node 0 may take to write traces and tables after training.
constexpr std::chrono::minutes outputs_limit{10};

actors::join_hooks hooks_of(const join_options& join, std::string description,
                            std::stop_token stop) {
  actors::join_hooks hooks;
  hooks.listen_fd = join.rendezvous_fd;
  hooks.key_fd = join.key_fd;
  hooks.version = RRFP_VERSION;
  hooks.description = std::move(description);
  hooks.stop = std::move(stop);
  hooks.on_refused = [](const std::string& why) { print_error("rrfp-node: {}\n", why); };
  // A launcher restarts no node: it names the lost node and ends the others.
  if (!join.launched) hooks.on_gone_early = hooks.on_refused;
  return hooks;
}

int end_with_loss(const node_context& context, const std::string& message) {
  if (context.reports(actors::ending::node_lost)) print_error("rrfp-node: {}\n", message);
  return exit_node_lost;
}

/// Node 0 writes the outputs of the job. If it is lost before that, all nodes must restart.
int wait_for_outputs(const node_context& context, interrupt_watch& interrupts) {
  auto& members = *context.members;
  interrupts.on_interrupt([&] { members.interrupt(); });
  (void)members.gather({}, outputs_limit);
  interrupts.on_interrupt(nullptr);
  const auto lost = members.loss();
  return lost ? end_with_loss(context, lost->why) : exit_done;
}

}  // namespace

int join_command(const command_options& options, const join_options& join) {
  interrupt_watch interrupts;
  const auto place = actors::resolve_launch(
      {join.nodes, join.node_rank, join.rendezvous, join.master_host, join.master_port},
      [](const char* name) -> const char* { return std::getenv(name); });
  if (!place) return end_with(place.failure());
  const auto loaded = job::load_job(options.job, policies::registry(), options.settings);
  if (!loaded) return end_with(loaded.failure());
  const auto runs = job::variants(*loaded);
  auto reports = reports_folder(options);
  if (!reports) return end_with(reports.failure());
  metrics::board board;
  const training_options outputs{options.json, options.trace, *reports, &board};
  auto checked =
      check_training(runs, place->node == node_id{0} ? outputs : training_options{}, place->nodes);
  if (!checked) return end_with(checked.failure());
  std::unique_ptr<metrics_server> server;
  if (!options.metrics.empty()) {
    const auto at = parse_http_address(options.metrics);
    if (!at) return end_with(at.failure());
    auto opened = metrics_server::open(*at, place->node, board);
    if (!opened) return end_with(opened.failure());
    server = std::move(*opened);
  }
  const auto places = plan::node_places::make(runs[0], place->nodes);

  std::stop_source stop;
  interrupts.on_interrupt([&] { stop.request_stop(); });
  const auto joined = actors::join_job(
      *loaded, *place, hooks_of(join, places->describe(place->node), stop.get_token()));
  interrupts.on_interrupt(nullptr);
  if (interrupts.interrupted()) {
    // A launcher forwards the user's interrupts as SIGINT. With SIGTERM it ends the remaining nodes
    // after a failure, which it reports itself.
    if (!join.launched || (place->node == node_id{0} && interrupts.last() == SIGINT))
      print_error("rrfp-node: interrupted before the training began\n");
    return exit_interrupted;
  }
  if (!joined) return end_with(joined.failure());
  const auto& members = joined->members;
  const auto& token = joined->token;
  const node_context context{{members.get(), token ? *token : 0}, join.launched};
  if (!token) return end_with_loss(context, token.message());
  if (context.leads())
    for (const auto& node : members->members())
      print("node {} at {}: {}\n", node.node.value(), node.host, node.description);
  int code = train(*std::move(checked), outputs, interrupts, context);
  if (code == exit_done) code = wait_for_outputs(context, interrupts);
  // All nodes have agreed on every other end.
  if (code != exit_node_lost) members->leave();
  return code;
}

}  // namespace rrfp::apps
