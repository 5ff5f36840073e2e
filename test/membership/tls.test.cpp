/// TLS over a socket pair, and the claim: what each side accepts.
#include <rrfp/core/membership_common.hpp>
#include <rrfp/membership/tls.hpp>

#include "support.hpp"

namespace rrfp::actors::control {
namespace {

using namespace std::chrono_literals;
using end_of = tls::end;
using side = tls_context::side;

const job_identity a_job{"0.1.0", "a job", 0x1234, 4};

/// Both sides of a connection, driven in turn until nothing more happens.
class pair_of_sides {
 public:
  pair_of_sides(const std::string& key_of_node, const std::string& key_of_node_0)
      : key_of_node_0_(key_of_node_0) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    node.emplace(file_descriptor{ends[0]});
    node_0.emplace(file_descriptor{ends[1]});
    node->begin_tls(context_of_node_, testing::psk_of(key_of_node), node_id{2});
  }

  void run() {
    for (int quiet = 0; quiet < 3; ++quiet) {
      (void)node->flush();
      take(*node_0, at_node_0);
      if (!node_0->has_tls() && at_node_0.any)
        node_0->begin_tls(context_of_node_0_, testing::psk_of(key_of_node_0_));
      (void)node_0->flush();
      take(*node, at_node);
    }
  }

  std::optional<channel> node, node_0;
  channel::arrival at_node, at_node_0;

 private:
  static void take(channel& from, channel::arrival& last) {
    if (last.ended == end_of::none) last = from.receive();
  }

  const std::string key_of_node_0_;
  const tls_context context_of_node_{side::node};
  const tls_context context_of_node_0_{side::node_0};
};

event::any judged(auto change) {
  claim c{wire_version, a_job, 2};
  change(c);
  return judge_claim({}, a_job, to_frame(c));
}
event::refused refusal(const event::any& e) { return std::get<event::refused>(e); }
std::string refusal_of(auto change) { return refusal(judged(change)).reason; }

}  // namespace

TEST_CASE("Two sides with the same key pass frames in both directions") {
  pair_of_sides both{"the key", "the key"};
  both.node->out().add(to_frame(ping{1, "to node 0"}));
  both.node_0->out().add(to_frame(ping{2, "from node 0"}));
  both.run();
  REQUIRE(both.node->is_secure());
  REQUIRE(both.node_0->is_secure());
  CHECK(both.node_0->named() == node_id{2});
  CHECK(decoded<ping>((*both.node_0->in().next())->payload)->status == "to node 0");
  CHECK(decoded<ping>((*both.node->in().next())->payload)->status == "from node 0");
}

TEST_CASE("Sides with different keys do not pass a frame, and both learn why") {
  pair_of_sides both{"the key", "another key"};
  both.node->out().add(to_frame(ping{}));
  both.node_0->out().add(to_frame(ping{}));
  both.run();
  CHECK_FALSE(both.node->is_secure());
  CHECK_FALSE(both.node_0->is_secure());
  CHECK(both.at_node_0.ended == end_of::invalid);
  CHECK(both.node_0->named() == node_id{2});
  CHECK(both.at_node.ended == end_of::refused);
  CHECK_FALSE(both.node->in().next()->has_value());
  CHECK_FALSE(both.node_0->in().next()->has_value());
}

TEST_CASE("The end of a process is the end of a connection, not a wrong key") {
  const auto after_handshake = GENERATE(true, false);
  pair_of_sides both{"the key", "the key"};
  if (after_handshake) both.run();
  both.node.reset();
  both.at_node_0 = both.node_0->receive();
  CHECK(both.at_node_0.ended == end_of::closed);
  CHECK(both.at_node_0.why == "connection closed");
}

TEST_CASE("Frames of many pieces arrive whole although the socket is full in between") {
  pair_of_sides both{"the key", "the key"};
  both.run();
  both.node_0->in().accept_large();
  const auto bytes = std::make_shared<const std::string>(3'000'000, 'b');
  both.node->out().add_bulk(1, bytes);
  std::string got;
  for (int turn = 0; turn < 2000 && got.size() < bytes->size(); ++turn) {
    REQUIRE(both.node->flush());
    CHECK(both.node_0->receive().ended == end_of::none);
    for (auto f = both.node_0->in().next(); f.value(); f = both.node_0->in().next())
      got += decoded<piece>((**f).payload)->bytes;
  }
  CHECK((got == *bytes));
}

TEST_CASE("The PSK depends on every byte of the key and is not the key") {
  const auto psk = testing::psk_of("0123456789abcdef0123456789abcdef");
  CHECK(psk.bytes().size() == 32);
  CHECK(psk == testing::psk_of("0123456789abcdef0123456789abcdef"));
  CHECK_FALSE(psk == testing::psk_of("0123456789abcdef0123456789abcdeX"));
  CHECK_FALSE(psk == secret{{psk.bytes().rbegin(), psk.bytes().rend()}});
}

TEST_CASE("Only a ClientHello of limited size opens TLS") {
  const auto hello = testing::client_hello("the key");
  REQUIRE(hello.size() > opening_bytes);
  for (std::size_t i = 0; i <= opening_bytes; ++i)
    CHECK(may_open_tls(std::string_view{hello}.substr(0, i)));
  for (const std::size_t i : {0, 1, 3, 4, 5, 6, 7, 8}) {
    auto changed = hello.substr(0, opening_bytes);
    changed[i] = static_cast<char>(changed[i] + 1);
    CHECK_FALSE(may_open_tls(changed));
  }
  CHECK_FALSE(may_open_tls("GET"));
  CHECK_FALSE(may_open_tls(std::string_view{"\x16\x03\x01\xff\xff\x01\0\xff\xfb", 9}));
}

TEST_CASE("A claim is judged by all its fields") {
  CHECK(std::get<event::proven>(judged([](claim&) {})).node == node_id{2});
  CHECK(refusal_of([](claim& c) { c.job.job_hash = 1; }).starts_with("job hash: "));
  CHECK(refusal_of([](claim& c) { c.job.version = "x"; }).starts_with("rrfp version: "));
  CHECK(refusal_of([](claim& c) { c.job.job_id = "x"; }) == "job: expected 'a job', got 'x'");
  CHECK(refusal_of([](claim& c) { c.job.nodes = 5; }) == "number of nodes: expected 4, got 5");
  CHECK(refusal_of([](claim& c) { c.node = 4; }) == "node: expected 0 to 3, got 4");
  CHECK(refusal_of([](claim& c) {
          c.job.vector_instructions = "x";
        }).starts_with("vector instructions: "));
  CHECK(refusal_of([](claim& c) { c.wire = 10; }) == "wire version: expected 9, got 10");
  // Fields of another version may have any form.
  CHECK(refusal(judge_claim({}, a_job, {claim::type, {"\12\0new", 5}})).reason ==
        "wire version: expected 9, got 10");
  CHECK(refusal(judge_claim({}, a_job, {claim::type, {"\11\0new", 5}})).reason ==
        "expected a claim");
  CHECK(refusal(judge_claim({}, a_job, {claim::type, "\3"})).reason == "expected a claim");
  CHECK(refusal(judge_claim({}, a_job, to_frame(ping{}))).reason == "expected a claim");
}

TEST_CASE("A received reason is cut to one printable line") {
  const auto answered = [](const auto& m) { return judge_answer({}, node_id{0}, to_frame(m)); };
  CHECK(std::get<event::proven>(answered(accept{})).node == node_id{0});
  CHECK(refusal(answered(refuse{"no\n\x1b[31mentry"})).reason ==
        "refused by node 0: no??[31mentry");
  CHECK(refusal(answered(refuse{"later", 1})).for_now);
  CHECK_FALSE(refusal(answered(refuse{"later", 1})).lost);
  CHECK(refusal(answered(refuse{"lost", 2})).lost);
  CHECK(refusal(answered(ping{})).reason == "node 0 sent a malformed answer");
  CHECK(printable("abcdef", 5) == "ab...");
}

}  // namespace rrfp::actors::control
