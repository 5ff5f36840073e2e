#include <xxhash.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stop_token>

#include <fmt/format.h>

#include <rrfp/actors/launch_environment.hpp>
#include <rrfp/actors/membership.hpp>
#include <rrfp/plan/node_places.hpp>

#include "commands.hpp"
#include "metrics_server.hpp"
#include "refuse.hpp"
#include "report_file.hpp"
#include "training.hpp"

namespace rrfp::apps {

namespace {

/// What all nodes must agree on: the job but for how each node reaches the others.
std::uint64_t fingerprint(job::job j) {
  j.transport = {};
  const auto text = job::to_toml(j);
  return XXH64(text.data(), text.size(), 0);
}

/// A number that all nodes know and no other job has.
result<std::uint64_t> draw_token(actors::membership& members) {
  std::random_device random;
  const auto own = std::to_string((std::uint64_t{random()} << 32) ^ random());
  const auto all = members.all_gather(own, std::chrono::seconds{30});
  if (!all) return all.failure();
  std::uint64_t token = 0;
  for (const auto& one : *all) token = XXH64(one.data(), one.size(), token);
  return token;
}

}  // namespace

int join_command(const command_options& options, const join_options& join) {
  interrupt_watch interrupts;
  const auto place =
      actors::resolve_launch({join.nodes, join.node_rank, join.rendezvous},
                             [](const char* name) -> const char* { return std::getenv(name); });
  if (!place) return refuse(place.message());
  const auto loaded = job::load_job(options.job, options.settings);
  if (!loaded) return refuse(loaded.message());
  const auto runs = job::variants(*loaded);
  auto reports = reports_folder(options);
  if (!reports) return refuse(reports.message());
  metrics::board board;
  const training_options outputs{options.json, options.trace, *reports, &board};
  if (auto can = check_training(runs, place->rank == node_id{0} ? outputs : training_options{},
                                place->nodes);
      !can)
    return refuse(can.message());
  std::unique_ptr<metrics_server> server;
  if (!options.metrics.empty()) {
    const auto at = parse_http_address(options.metrics);
    if (!at) return refuse(at.message());
    auto opened = metrics_server::open(*at, place->rank, board);
    if (!opened) return refuse(opened.message());
    server = std::move(*opened);
  }
  const auto places = plan::node_places::make(runs[0], place->nodes);

  std::stop_source stop;
  const auto& t = loaded->transport;
  actors::membership_options m;
  m.nodes = place->nodes;
  m.rank = place->rank;
  m.rendezvous_host = place->host;
  m.rendezvous_port = place->port;
  m.listen_fd = join.rendezvous_fd;
  m.key_file = t.key_file;
  m.job_id = loaded->name;
  m.job_hash = fingerprint(*loaded);
  m.version = RRFP_VERSION;
  m.description = places->describe(m.rank);
  m.join_timeout = std::chrono::milliseconds{static_cast<std::int64_t>(t.join_timeout_s * 1e3)};
  m.heartbeat = std::chrono::milliseconds{t.heartbeat_ms};
  m.node_timeout = std::chrono::milliseconds{t.node_timeout_ms};
  m.stop = stop.get_token();
  m.on_refused = [](const std::string& why) { fmt::print(stderr, "rrfp-node: {}\n", why); };
  interrupts.on_interrupt([&] { stop.request_stop(); });
  auto members = actors::membership::join(std::move(m), {});
  interrupts.on_interrupt(nullptr);
  if (interrupts.interrupted()) return exit_interrupted;
  // Nothing has begun: a wrong place, key or job, or others that do not come.
  if (!members) return refuse(members.message());
  const auto token = draw_token(**members);
  const node_seat seat{members->get(), token ? *token : 0, join.launched};
  if (!token) {
    if (seat.tells(token.message())) fmt::print(stderr, "rrfp-node: {}\n", token.message());
    return exit_node_lost;
  }
  if (seat.leads())
    for (const auto& node : (*members)->members())
      fmt::print("node {} at {}: {}\n", node.node.value(), node.host, node.description);
  const int code = train(runs, outputs, interrupts, seat);
  if (code == exit_done || code == exit_interrupted) (*members)->leave();
  return code;
}

}  // namespace rrfp::apps
