#include "wire.hpp"

#include <fmt/format.h>

#include <rrfp/core/membership_common.hpp>

namespace rrfp::actors::control {

namespace {

/// The first difference, as "expected ..., got ..."; empty if there is none.
std::string difference(const job_identity& expected, const job_identity& received) {
  const auto differ = [](std::string_view name, const auto& a, const auto& b) {
    return fmt::format("{}: expected {}, got {}", name, a, b);
  };
  if (expected.version != received.version)
    return differ("rrfp version", "'" + expected.version + "'", "'" + received.version + "'");
  if (expected.job_id != received.job_id)
    return differ("job", "'" + expected.job_id + "'", "'" + received.job_id + "'");
  if (expected.job_hash != received.job_hash)
    return differ("job hash", fmt::format("{:016x}", expected.job_hash),
                  fmt::format("{:016x} (the job files, their overrides or the programs differ)",
                              received.job_hash));
  if (expected.nodes != received.nodes)
    return differ("number of nodes", expected.nodes, received.nodes);
  if (expected.vector_instructions != received.vector_instructions)
    return differ("vector instructions", expected.vector_instructions,
                  received.vector_instructions +
                      " (set ATEN_CPU_CAPABILITY on all nodes, to avx2 for example)");
  return {};
}

}  // namespace

event::any judge_claim(connection_id from, const job_identity& job, const frame& f) {
  if (f.type != claim::type || f.payload.size() < sizeof wire_version)
    return event::refused{from, {}, "expected a claim"};
  // The first field of every version; what follows it may differ.
  std::uint16_t wire = 0;
  byte_reader{f.payload}.get(wire);
  if (wire != wire_version)
    return event::refused{
        from, {}, fmt::format("wire version: expected {}, got {}", wire_version, wire)};
  const auto c = decoded<claim>(f.payload);
  if (!c) return event::refused{from, {}, "expected a claim"};
  auto reason = difference(job, c->job);
  if (reason.empty() && c->node >= job.nodes)
    reason = fmt::format("node: expected 0 to {}, got {}", job.nodes - 1, c->node);
  if (!reason.empty()) return event::refused{from, node_id{c->node}, printable(reason)};
  return event::proven{from, node_id{c->node}, process_id{c->process}, c->again != 0};
}

event::any judge_answer(connection_id from, node_id leader, const frame& f) {
  if (f.type == accept::type && f.payload.empty()) return event::proven{from, leader};
  const auto name = name_of(leader, {});
  const auto no = f.type == refuse::type ? decoded<refuse>(f.payload) : std::nullopt;
  if (!no) return event::refused{from, leader, name + " sent a malformed answer"};
  return event::refused{from, leader, "refused by " + name + ": " + printable(no->reason),
                        no->for_now != 0, no->for_now == 2};
}

}  // namespace rrfp::actors::control
