#include "node_report.hpp"

#include <fmt/format.h>

#include <rrfp/base/units.hpp>

namespace rrfp::actors {

namespace {

std::string text_of(const char* with, const std::shared_ptr<collective_watch>& watch) {
  if (watch == nullptr) return {};
  const auto call = watch->open();
  if (!call) return {};
  return fmt::format(", in a collective with {} for {:.3f} s: {}", with,
                     seconds(metrics::steady_now() - call->began),
                     tp_coord::to_string(call->print));
}

std::string text_of(const metrics::rank_counters& r, const rank_watch& watch,
                    std::uint32_t replicas) {
  const auto& [stage, rank, replica] = r.at;
  const auto prefix = replicas == 1 ? std::string{} : fmt::format("replica {} ", replica.value());
  return fmt::format(
      "  {}stage {} rank {}: {} inputs waiting, {} tensors ({} bytes) sent, {} ({} bytes) received"
      "{}{}\n",
      prefix, stage.value(), rank.value(), r.inputs_waiting.value(), r.sent.value(),
      r.sent_bytes.value(), r.received.value(), r.received_bytes.value(),
      text_of("the ranks of the stage", watch.stage), text_of("the replicas", watch.replicas));
}

}  // namespace

std::string node_report(const run_context& context, const write_report& request,
                        const std::map<stage_key, std::string>& stages) {
  const auto& counters = *context.counters;
  auto text = fmt::format("{}: {}\n", counters.run, request.why);
  for (const auto& cause : request.causes) text += fmt::format("cause: {}\n", cause);
  if (request.causes.empty()) text += "cause: no stage waits for anything\n";
  text += fmt::format("last progress on this node {:.3f} s ago\n", seconds(context.silence()));
  for (const auto& [stage, description] : stages) text += "  " + description;
  for (std::size_t i = 0; i < counters.ranks.size(); ++i)
    text += text_of(counters.ranks[i], context.watches[i], context.setup.replicas);
  const auto wire = counters.transport.read();
  text += fmt::format(
      "  transport between nodes: {} sent, {} received, {} announced and not fetched, {} bytes "
      "being fetched, {} dropped\n",
      wire.sent, wire.received, wire.announced, wire.inflight_bytes,
      wire.dropped_duplicate + wire.dropped_others());
  return text;
}

}  // namespace rrfp::actors
