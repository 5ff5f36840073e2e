/// The handshake without a socket: what each side accepts, and what a proof is bound to.
#include "handshake.hpp"

#include <catch2/catch.hpp>

namespace rrfp::actors::control {
namespace {

const job_identity a_job{"0.1.0", "a job", 0x1234, 0, 4};

secret key_of(const std::string& text) {
  return secret{std::vector<unsigned char>{text.begin(), text.end()}};
}

using step = verdict::step;

/// How a handshake between a node and node 0 ended.
struct ending {
  std::string refusal;
  bool admitted = false;
};

ending handshake(const secret& of_node, const job_identity& job_of_node, const secret& of_node_0) {
  client_handshake node{of_node, job_of_node, node_id{2}, *fresh_nonce()};
  server_handshake server{of_node_0, a_job};
  auto sent = node.greeting();
  for (;;) {
    const auto said = *server.handle(sent);
    if (said.next == step::refused) return {said.reason, false};
    const auto answer = *node.handle(said.next == step::proven ? server.acceptance() : said.answer);
    if (answer.next != step::more) return {answer.reason, answer.next == step::proven};
    sent = answer.answer;
  }
}

}  // namespace

TEST_CASE("Two sides with the same key and the same job derive the same session keys") {
  const auto key = key_of("the key");
  client_handshake node{key, a_job, node_id{2}, *fresh_nonce()};
  server_handshake server{key, a_job};
  const auto challenge = server.handle(node.greeting());
  const auto claim = node.handle(challenge->answer);
  REQUIRE(server.handle(claim->answer)->next == step::proven);
  CHECK(server.claimed() == node_id{2});
  REQUIRE(node.handle(server.acceptance())->next == step::proven);
  const auto a = node.keys();
  const auto b = server.keys();
  CHECK(a.to_node_0.bytes() == b.to_node_0.bytes());
  CHECK(a.from_node_0.bytes() == b.from_node_0.bytes());
  CHECK(a.to_node_0.bytes() != a.from_node_0.bytes());
}

TEST_CASE("A node without the key is not admitted and learns nothing about the job") {
  auto other = a_job;
  other.job_hash = 1;
  CHECK(handshake(key_of("a"), a_job, key_of("a")).admitted);
  CHECK(handshake(key_of("b"), other, key_of("a")).refusal == "key refused");
  CHECK(handshake(key_of("a"), other, key_of("a")).refusal.starts_with("job hash: "));
}

TEST_CASE("A proof is bound to every field of the claim") {
  const auto key = key_of("the key");
  client_handshake node{key, a_job, node_id{2}, *fresh_nonce()};
  const auto verdict_on = [&](auto change) {
    server_handshake server{key, a_job};
    client_handshake fresh{key, a_job, node_id{2}, *fresh_nonce()};
    const auto challenge = server.handle(fresh.greeting());
    auto claimed = decode<claim>(fresh.handle(challenge->answer)->answer.payload);
    change(*claimed);
    return server.handle(to_frame(*claimed))->reason;
  };
  CHECK(verdict_on([](claim&) {}).empty());
  CHECK(verdict_on([](claim& c) { c.node = 1; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.reserved = 1; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.job_hash ^= 1; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.version = "x"; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.job_id = "x"; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.nodes = 5; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.proof[31] ^= 1; }) == "key refused");
}

TEST_CASE("A proof is valid for one challenge only, and node 0's proof differs from the node's") {
  const auto key = key_of("the key");
  client_handshake node{key, a_job, node_id{2}, *fresh_nonce()};
  server_handshake first{key, a_job};
  server_handshake second{key, a_job};
  const auto claimed = node.handle(first.handle(node.greeting())->answer);
  (void)second.handle(node.greeting());
  CHECK(second.handle(claimed->answer)->reason == "key refused");

  // Reflects the node's own proof.
  const auto proof = decode<claim>(claimed->answer.payload)->proof;
  const auto mirrored = node.handle(to_frame(accept{proof}));
  REQUIRE(mirrored->next == step::refused);
  CHECK(mirrored->reason == "the listener did not prove that it has the key");
}

TEST_CASE("A received reason is cut to one printable line") {
  const auto key = key_of("the key");
  client_handshake node{key, a_job, node_id{2}, *fresh_nonce()};
  const auto got = node.handle(to_frame(refuse{"no\n\x1b[31mentry"}));
  REQUIRE(got->next == step::refused);
  CHECK(got->reason == "refused by node 0: no??[31mentry");
  CHECK(printable("abcdef", 3) == "abc");
}

}  // namespace rrfp::actors::control
