#include "handshake.hpp"

#include <fmt/format.h>

namespace rrfp::actors::control {

namespace {

/// What an HMAC proves: an HMAC for one purpose is invalid for every other.
enum class purpose : std::uint8_t {
  node_proves = 1,
  node_0_proves = 2,
  key_to_node_0 = 3,
  key_from_node_0 = 4,
};

digest prove(const secret& key, purpose use, const job_identity& job, std::uint32_t node,
             const nonce& of_node, const nonce& of_node_0) {
  byte_writer head;
  head(magic);
  head(wire_version);
  head(static_cast<std::uint8_t>(use));
  const claim claimed{job, node, {}};
  return hmac(key, {head.take(), encode(claimed), view(of_node), view(of_node_0)});
}

session_keys derive(const secret& key, const job_identity& job, std::uint32_t node,
                    const nonce& of_node, const nonce& of_node_0) {
  auto to = prove(key, purpose::key_to_node_0, job, node, of_node, of_node_0);
  auto from = prove(key, purpose::key_from_node_0, job, node, of_node, of_node_0);
  return {secret{to}, secret{from}};
}

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
    return differ(
        "job hash", fmt::format("{:016x}", expected.job_hash),
        fmt::format("{:016x} (the job files or their overrides differ)", received.job_hash));
  if (expected.reserved != received.reserved)
    return differ("reserved field", expected.reserved, received.reserved);
  if (expected.nodes != received.nodes)
    return differ("number of nodes", expected.nodes, received.nodes);
  return {};
}

verdict refused(const std::string& reason, bool for_now = false) {
  return {verdict::step::refused, {}, printable(reason), for_now};
}

}  // namespace

result<verdict> server_handshake::handle(const frame& f) {
  if (!hello_) {
    const auto received = f.type == hello::type ? decode<hello>(f.payload) : std::nullopt;
    if (!received || received->mark != magic) return refused("not an rrfp node: expected a hello");
    if (received->wire != wire_version)
      return refused(
          fmt::format("wire version: expected {}, got {}", wire_version, received->wire));
    auto random = fresh_nonce();
    if (!random) return random.failure();
    hello_ = *received;
    challenge_ = challenge{*random};
    return verdict{verdict::step::more, to_frame(*challenge_)};
  }
  const auto received = f.type == claim::type ? decode<claim>(f.payload) : std::nullopt;
  if (!received) return refused("expected a claim after the hello");
  return check_claim(*received);
}

verdict server_handshake::check_claim(const claim& c) {
  node_ = node_id{c.node};
  // The proof comes first, so that a node without the key learns nothing about the job.
  if (!equal(c.proof,
             prove(key_, purpose::node_proves, c.job, c.node, hello_->random, challenge_->random)))
    return refused("key refused");
  if (const auto reason = difference(job_, c.job); !reason.empty()) return refused(reason);
  if (c.node >= job_.nodes)
    return refused(fmt::format("node: expected 0 to {}, got {}", job_.nodes - 1, c.node));
  return {verdict::step::proven};
}

frame server_handshake::acceptance() const {
  return to_frame(accept{prove(key_, purpose::node_0_proves, job_, node_->value(), hello_->random,
                               challenge_->random)});
}

session_keys server_handshake::keys() const {
  return derive(key_, job_, node_->value(), hello_->random, challenge_->random);
}

result<verdict> client_handshake::handle(const frame& f) {
  if (f.type == refuse::type) {
    const auto no = decode<refuse>(f.payload);
    return verdict{verdict::step::refused,
                   {},
                   "refused by node 0: " + (no ? printable(no->reason) : "(no reason)"),
                   no && no->for_now != 0};
  }
  if (!challenge_) {
    const auto received = f.type == challenge::type ? decode<challenge>(f.payload) : std::nullopt;
    if (!received) return refused("the listener is not node 0 of an rrfp job");
    challenge_ = *received;
    claim c{job_, node_.value(), {}};
    c.proof = prove(key_, purpose::node_proves, job_, c.node, hello_.random, challenge_->random);
    return verdict{verdict::step::more, to_frame(c)};
  }
  const auto received = f.type == accept::type ? decode<accept>(f.payload) : std::nullopt;
  const auto expected =
      prove(key_, purpose::node_0_proves, job_, node_.value(), hello_.random, challenge_->random);
  if (!received || !equal(received->proof, expected))
    return refused("the listener did not prove that it has the key");
  return verdict{verdict::step::proven};
}

session_keys client_handshake::keys() const {
  return derive(key_, job_, node_.value(), hello_.random, challenge_->random);
}

}  // namespace rrfp::actors::control
