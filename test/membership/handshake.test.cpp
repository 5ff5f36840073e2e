/// The handshake without a socket: what each side accepts, and what a proof is bound to.
#include "handshake.hpp"

#include <catch2/catch.hpp>

namespace rrfp::actors::control {
namespace {

const job_identity a_job{"0.1.0", "a job", 0x1234, 0, 4};

secret key_of(const std::string& text) {
  return secret{std::vector<unsigned char>{text.begin(), text.end()}};
}

std::string free_seat(node_id) { return {}; }

/// The words between a node and rank 0 until one of them ends it; the node's view of the end.
struct ending {
  std::string refusal;  ///< by rank 0, of the node
  std::string complaint;
  bool node_is_in = false;
};

ending meet(const secret& of_node, const job_identity& job_of_node, const secret& of_rank_0) {
  applicant node{of_node, job_of_node, node_id{2}, *fresh_nonce()};
  doorkeeper door{of_rank_0, a_job};
  std::optional<frame> said = node.greeting();
  for (int i = 0; i < 5 && said; ++i) {
    const auto verdict = *door.on(*said, free_seat);
    auto answer = node.on(verdict.answer);
    if (!answer) return {verdict.reason, answer.message(), false};
    said = *std::move(answer);
  }
  return {{}, {}, !said.has_value()};
}

}  // namespace

TEST_CASE("Both sides with the same key and the same job agree on their session keys") {
  const auto key = key_of("the key");
  applicant node{key, a_job, node_id{2}, *fresh_nonce()};
  doorkeeper door{key, a_job};
  const auto challenge = door.on(node.greeting(), free_seat);
  const auto claim = node.on(challenge->answer);
  const auto verdict = door.on(**claim, free_seat);
  REQUIRE(verdict->next == doorkeeper::verdict::step::admitted);
  CHECK(door.claimed() == node_id{2});
  REQUIRE_FALSE(node.on(verdict->answer)->has_value());
  const auto a = node.keys();
  const auto b = door.keys();
  CHECK(a.to_rank_0.bytes() == b.to_rank_0.bytes());
  CHECK(a.from_rank_0.bytes() == b.from_rank_0.bytes());
  CHECK(a.to_rank_0.bytes() != a.from_rank_0.bytes());
}

TEST_CASE("Without the key neither side gets in, and neither learns why") {
  auto other = a_job;
  other.job_hash = 1;
  CHECK(meet(key_of("a"), a_job, key_of("a")).node_is_in);
  CHECK(meet(key_of("b"), other, key_of("a")).refusal == "key refused");
  CHECK(meet(key_of("a"), other, key_of("a")).refusal.starts_with("job hash: "));
}

TEST_CASE("A proof is bound to everything that is claimed") {
  const auto key = key_of("the key");
  applicant node{key, a_job, node_id{2}, *fresh_nonce()};
  const auto verdict_on = [&](auto change) {
    doorkeeper door{key, a_job};
    applicant fresh{key, a_job, node_id{2}, *fresh_nonce()};
    const auto challenge = door.on(fresh.greeting(), free_seat);
    auto claimed = decode<claim>((**fresh.on(challenge->answer)).payload);
    change(*claimed);
    return door.on(to_frame(*claimed), free_seat)->reason;
  };
  CHECK(verdict_on([](claim&) {}).empty());
  CHECK(verdict_on([](claim& c) { c.rank = 1; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.epoch = 1; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.job_hash ^= 1; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.version = "x"; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.job_id = "x"; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.job.nodes = 5; }) == "key refused");
  CHECK(verdict_on([](claim& c) { c.proof[31] ^= 1; }) == "key refused");
}

TEST_CASE("A proof fits one challenge, and rank 0's proof is not the node's") {
  const auto key = key_of("the key");
  applicant node{key, a_job, node_id{2}, *fresh_nonce()};
  doorkeeper first{key, a_job};
  doorkeeper second{key, a_job};
  const auto claimed = node.on(first.on(node.greeting(), free_seat)->answer);
  (void)second.on(node.greeting(), free_seat);
  CHECK(second.on(**claimed, free_seat)->reason == "key refused");

  // A mirror that sends the node its own proof back.
  const auto proof = decode<claim>((**claimed).payload)->proof;
  const auto mirrored = node.on(to_frame(accept{proof}));
  REQUIRE_FALSE(mirrored.ok());
  CHECK(mirrored.message() == "what answers there does not know the key: not joined");
}

TEST_CASE("A reason from elsewhere is cut to a line that can be printed") {
  const auto key = key_of("the key");
  applicant node{key, a_job, node_id{2}, *fresh_nonce()};
  const auto got = node.on(to_frame(refuse{"no\n\x1b[31mentry"}));
  REQUIRE_FALSE(got.ok());
  CHECK(got.message() == "refused by rank 0: no??[31mentry");
  CHECK(printable("abcdef", 3) == "abc");
}

}  // namespace rrfp::actors::control
