/// Bytes between the ranks of a group, across processes and within one.
#include <thread>

#include "ucx_nodes.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {
namespace {

using namespace rrfp::actors;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Two ranks on each node.
channel_group four_ranks() {
  channel_group g{42, {}};
  for (std::uint32_t i = 0; i < 4; ++i) g.members.push_back({stage_id{i / 2}, rank_id{i % 2}});
  return g;
}

std::vector<std::byte> pattern(std::uint32_t from, std::uint64_t tag, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 31 + from * 7 + tag);
  return out;
}

void send_bytes(tp_coord::rank_channel& channel, rank_id to, std::uint64_t tag,
                std::span<const std::byte> bytes) {
  expect(channel.send(to, tag, bytes).ok(), "send failed");
}

/// A receive that fills all of `into` within `limit`.
void receive_all(tp_coord::rank_channel& channel, rank_id from, std::uint64_t tag,
                 std::span<std::byte> into, milliseconds limit) {
  const auto got = channel.receive(from, tag, into, limit);
  expect(got.ok(), got.ok() ? "" : got.message());
  expect(*got == into.size(), "nothing arrived, or a message of another size");
}

/// Every rank sends to every other rank, then receives from every other rank.
void all_to_all(tp_coord::rank_channel& channel, std::uint32_t own, std::uint64_t tag,
                std::size_t bytes) {
  for (std::uint32_t to = 0; to < 4; ++to)
    if (to != own) send_bytes(channel, rank_id{to}, tag, pattern(own, tag, bytes));
  for (std::uint32_t from = 0; from < 4; ++from) {
    if (from == own) continue;
    std::vector<std::byte> got(bytes);
    receive_all(channel, rank_id{from}, tag, got, seconds{20});
    expect(got == pattern(from, tag, bytes), "wrong bytes");
  }
}

}  // namespace

TEST_CASE("Four ranks on two nodes exchange bytes of every size, by tag") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const auto body = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    for (const auto& m : four_ranks().members) wire->route(m, node_id{m.stage.value()});
    node.barrier();
    std::vector<std::string> problems(2);
    std::vector<std::thread> ranks;
    for (std::uint32_t r = 0; r < 2; ++r)
      ranks.emplace_back([&, own = node.id().value() * 2 + r, r] {
        try {
          const auto channel = wire->open_channel(four_ranks(), rank_id{own});
          std::uint64_t tag = 0;
          for (int i = 0; i < 300; ++i) all_to_all(*channel, own, tag++, 64);
          for (const std::size_t bytes : {0UL, 1UL, 8192UL, 8193UL, 1UL << 20, 5'000'001UL})
            all_to_all(*channel, own, tag++, bytes);
        } catch (const std::exception& e) {
          problems[r] = e.what();
        }
      });
    for (auto& r : ranks) r.join();
    expect(problems[0].empty() && problems[1].empty(), problems[0] + problems[1]);
    expect(wire->counters().slabs_in_use == 0 ||
               eventually([&] { return wire->counters().slabs_in_use == 0; }),
           "slabs leaked");
    node.barrier();
  };
  CHECK(run_nodes(tls, {body, body}) == "");
}

TEST_CASE(
    "Bytes that arrive before their channel or receive is open are kept, in any order of tags") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const channel_group pair{1, {{stage_id{0}, rank_id{0}}, {stage_id{1}, rank_id{0}}}};
  const auto early = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    const auto channel = wire->open_channel(pair, rank_id{0});
    for (std::uint64_t tag = 0; tag < 100; ++tag)
      send_bytes(*channel, rank_id{1}, tag, pattern(0, tag, 1000 * tag));
    node.barrier();
    node.barrier();
  };
  const auto late = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    node.barrier();
    expect(eventually([&] { return wire->counters().received == 100; }), "not all arrived");
    const auto channel = wire->open_channel(pair, rank_id{1});
    for (std::uint64_t tag = 100; tag-- > 0;) {
      std::vector<std::byte> got(1000 * tag);
      receive_all(*channel, rank_id{0}, tag, got, milliseconds{0});
      expect(got == pattern(0, tag, 1000 * tag), "wrong bytes");
    }
    node.barrier();
  };
  CHECK(run_nodes(tls, {early, late}) == "");
}

TEST_CASE(
    "A receive without a sender ends at its limit, and one from a node that left ends at once") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const channel_group pair{1, {{stage_id{0}, rank_id{0}}, {stage_id{1}, rank_id{0}}}};
  const auto waits = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    const auto channel = wire->open_channel(pair, rank_id{0});
    std::byte into[8];
    const auto begun = std::chrono::steady_clock::now();
    const auto none = channel->receive(rank_id{1}, 1, into, milliseconds{50});
    const auto took = std::chrono::steady_clock::now() - begun;
    expect(none.ok() && !*none && took >= milliseconds{50} && took < seconds{5},
           "the limit was not kept");
    node.barrier();
    const auto gone = channel->receive(rank_id{1}, 1, into, seconds{50});
    expect(!gone && gone.message() == "node 1 has left the job", "it waited for a node that left");
  };
  const auto leaves = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    node.barrier();
    std::this_thread::sleep_for(milliseconds{100});
  };
  CHECK(run_nodes(tls, {waits, leaves}, false, seconds{30}) == "");
}

TEST_CASE("Closing a channel closes its group on every node; arrived bytes can still be received") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const auto body = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    for (const auto& m : four_ranks().members) wire->route(m, node_id{m.stage.value()});
    node.barrier();
    const auto first = node.id().value() * 2;
    const auto closes = node.id() == node_id{0};
    const auto channel = wire->open_channel(four_ranks(), rank_id{first});
    const auto other = wire->open_channel(four_ranks(), rank_id{first + 1});
    if (closes) {
      for (const auto to : {1u, 2u}) send_bytes(*channel, rank_id{to}, 5, pattern(0, 5, 64));
      channel->close("rank 0 closed the channel");
    }
    for (auto* const waits : {channel.get(), other.get()}) {
      std::byte into[8];
      const auto none = waits->receive(rank_id{first ^ 2u}, 9, into, seconds{50});
      expect(!none && none.message() == "rank 0 closed the channel", "the group is not closed");
    }
    std::vector<std::byte> got(64);
    receive_all(closes ? *other : *channel, rank_id{0}, 5, got, milliseconds{0});
    expect(got == pattern(0, 5, 64), "arrived bytes are lost");
    node.barrier();
  };
  CHECK(run_nodes(tls, {body, body}, false, seconds{30}) == "");
}

}  // namespace rrfp::testing
