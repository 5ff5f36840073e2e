/// Exchanges: what each node gets, and how one fails.
#include <algorithm>

#include "support.hpp"

namespace rrfp::actors::testing {
namespace {

using answer = result<std::string>;

std::vector<std::future<answer>> begin_exchange(
    std::vector<std::unique_ptr<membership>>& nodes,
    const std::function<std::string(std::size_t)>& bytes, const membership::answering& answering) {
  std::vector<std::future<answer>> all;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    all.push_back(std::async(std::launch::async, [&node = *nodes[i], mine = bytes(i), answering] {
      return node.exchange(mine, 30s, answering);
    }));
  return all;
}

/// Differs between nodes and between pages, so that a misplaced piece is detected.
std::string pattern(std::size_t node, std::size_t size) {
  std::string bytes;
  bytes.reserve(size + 4096);
  while (bytes.size() < size)
    bytes.append(4096 - node, static_cast<char>(bytes.size() / 4096 * 31 + node));
  bytes.resize(size);
  return bytes;
}

}  // namespace

TEST_CASE("Node 0 answers each node, or all alike, in every round") {
  job all{4};
  auto nodes = join_all(all, 4);
  const auto bytes_of = [](std::size_t i, std::size_t round) {
    return std::string(i * round, static_cast<char>('a' + i));  // some are empty
  };
  for (std::size_t round = 0; round < 20; ++round) {
    const bool alike = round % 2 == 0;
    auto under_way = begin_exchange(
        nodes, [&](std::size_t i) { return bytes_of(i, round); },
        [&](const std::vector<std::string>& got) {
          std::vector<std::string> answers;
          for (std::size_t i = 0; i < got.size(); ++i) {
            CHECK(got[i] == bytes_of(i, round));
            answers.push_back(got[got.size() - 1 - i]);
          }
          if (alike) answers.resize(1);
          return answers;
        });
    for (std::size_t i = 0; i < 4; ++i) {
      const auto got = under_way[i].get();
      REQUIRE(got.ok());
      CHECK(*got == bytes_of(alike ? 3 : 3 - i, round));
    }
  }
  leave_all(nodes);
}

TEST_CASE("A node that joins an exchange last completes it at once and may begin the next round") {
  job all{3};
  auto nodes = join_all(all, 3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::future<answer>> early;
    for (const auto i : {0, 1})
      early.push_back(std::async(std::launch::async, [&node = *nodes[i]] {
        if (const auto first = tell_all(node, "a", 5s); !first) return first;
        return tell_all(node, "b", 5s);
      }));
    std::this_thread::sleep_for(20ms);  // until their bytes have arrived
    const auto first = tell_all(*nodes[2], "c", 5s);
    REQUIRE(first.ok());
    auto second = tell_all(*nodes[2], "d", 5s);
    INFO((second.ok() ? std::string{} : second.message()));
    REQUIRE(second.ok());
    CHECK(*second == "bbd");
    for (auto& one : early) CHECK(one.get().ok());
  }
  leave_all(nodes);
}

TEST_CASE("Four nodes exchange 8 MiB each, and no heartbeat times out meanwhile") {
  constexpr std::size_t size = 8 * 1024 * 1024;
  job all{4};
  auto nodes = join_all(all, 4);
  lines lost;
  for (auto& node : nodes) node->on_lost([&](node_id, const std::string& why) { lost.add(why); });
  auto under_way = begin_exchange(
      nodes, [](std::size_t i) { return pattern(i, size + i); },
      [](std::vector<std::string> got) {
        std::rotate(got.begin(), got.begin() + 1, got.end());
        return got;
      });
  for (std::size_t i = 0; i < 4; ++i) {
    const auto got = under_way[i].get();
    INFO((got.ok() ? std::string{} : got.message()));
    REQUIRE(got.ok());
    CHECK((*got == pattern((i + 1) % 4, size + (i + 1) % 4)));
  }
  leave_all(nodes);
  CHECK(lost.all() == std::vector<std::string>{});
}

TEST_CASE("Only node 0 gets the bytes of the others") {
  job all{4};
  all.use_good_key();
  relay link{all.port()};
  std::vector<std::future<joined>> joining;
  for (std::uint32_t i = 0; i < 4; ++i) {
    auto options = all.options(i);
    if (i == 3) options.rendezvous_port = link.port();
    joining.push_back(begin_join(options));
  }
  std::vector<std::unique_ptr<membership>> nodes;
  for (auto& one : joining) nodes.push_back(*one.get());
  constexpr std::size_t size = 300'000;
  const auto before = link.passed_to_nodes();
  for (int round = 0; round < 3; ++round) {
    std::size_t received = 0;
    auto under_way = begin_exchange(
        nodes, [](std::size_t i) { return i == 2 ? std::string{} : pattern(i, size + i); },
        [&](const std::vector<std::string>& got) {
          for (const auto& one : got) received += one.size();
          return std::vector<std::string>(1);
        });
    for (auto& one : under_way) {
      const auto got = one.get();
      REQUIRE(got.ok());
      CHECK(got->empty());
    }
    CHECK(received == 3 * size + 0 + 1 + 3);
  }
  // Node 3 received none of the others' bytes.
  CHECK(link.passed_to_nodes() - before < size);
  leave_all(nodes);
}

TEST_CASE("If only another node's time is over, that node names node 0") {
  job all{3};
  auto nodes = join_all(all, 3);
  auto one = std::async(std::launch::async, [&] { return tell_all(*nodes[1], "1", 300ms); });
  const auto zero = tell_all(*nodes[0], "0", 600ms);
  REQUIRE_FALSE(zero.ok());
  CHECK(zero.message() == "an exchange exceeded 0.6 s: no contribution from node 2");
  CHECK(one.get().message() == "an exchange exceeded 0.3 s: no answer from node 0");
  leave_all(nodes);
}

TEST_CASE("If a node is lost during an exchange, all nodes get the message of the loss") {
  job all{3};
  auto nodes = join_all(all, 3);
  auto one = std::async(std::launch::async, [&] { return tell_all(*nodes[1], "1", 30s); });
  auto zero = std::async(std::launch::async, [&] { return tell_all(*nodes[0], "0", 30s); });
  nodes.pop_back();
  const std::string lost = "node 2 (stage 2) was lost: connection closed";
  CHECK(zero.get().message() == lost);
  CHECK(one.get().message() == lost);
  leave_all(nodes);
}

TEST_CASE("If a node leaves right after an exchange, the others still get its bytes") {
  job all{3};
  auto nodes = join_all(all, 3);
  std::vector<std::future<bool>> ends;
  for (std::size_t i = 0; i < 3; ++i)
    ends.push_back(std::async(std::launch::async, [&node = *nodes[i], i] {
      const auto got = tell_all(node, pattern(i, 1 << 20), 30s);
      node.leave();
      return got.ok() && *got == pattern(0, 1 << 20) + pattern(1, 1 << 20) + pattern(2, 1 << 20);
    }));
  for (auto& one : ends) CHECK(one.get());
}

TEST_CASE("An exchange that a node does not join fails on all others in the words of node 0") {
  job all{3};
  auto nodes = join_all(all, 3);
  auto one = std::async(std::launch::async, [&] { return tell_all(*nodes[1], "1", 30s); });
  const auto zero = tell_all(*nodes[0], "0", 300ms);
  const auto of_one = one.get();
  REQUIRE_FALSE(zero.ok());
  REQUIRE_FALSE(of_one.ok());
  CHECK(zero.message() == "an exchange exceeded 0.3 s: no contribution from node 2");
  CHECK(of_one.message() == zero.message());
  CHECK(tell_all(*nodes[0], "0", 1s).message() ==
        "an earlier exchange failed: no further one is possible");
  leave_all(nodes);
}

TEST_CASE("An interrupt ends a blocked exchange") {
  job all{2};
  std::stop_source stop;
  const auto by_token = GENERATE(true, false);
  auto zero = begin_join(all.options(0));
  auto options = all.options(1);
  options.stop = stop.get_token();
  auto node = *begin_join(options).get();
  auto other = *zero.get();
  auto waiting = std::async(std::launch::async, [&] { return tell_all(*node, "1", 20s); });
  std::this_thread::sleep_for(100ms);
  const auto begun = clock::now();
  if (by_token)
    stop.request_stop();
  else
    node->interrupt();
  const auto got = waiting.get();
  CHECK(clock::now() - begun < 100ms);
  REQUIRE_FALSE(got.ok());
  CHECK(got.message() == "interrupted during an exchange");
  node->leave();
  other->leave();
}

TEST_CASE("An exchange with a node that has left or is lost fails at once and names it") {
  const auto orderly = GENERATE(true, false);
  job all{3};
  auto nodes = join_all(all, 3);
  std::vector<std::future<answer>> under_way;
  for (std::size_t i = 0; i < 2; ++i)
    under_way.push_back(
        std::async(std::launch::async, [&node = *nodes[i]] { return tell_all(node, "x", 20s); }));
  std::this_thread::sleep_for(50ms);
  if (orderly) nodes[2]->leave();
  nodes[2].reset();
  for (auto& one : under_way) {
    const auto got = one.get();
    REQUIRE_FALSE(got.ok());
    CHECK(got.message() == (orderly ? "node 2 (stage 2) has left the job: no exchange with it"
                                    : "node 2 (stage 2) was lost: connection closed"));
  }
}

TEST_CASE("A contribution of more than 64 MiB is refused") {
  job all{1};
  auto nodes = join_all(all, 1);
  const auto got = tell_all(*nodes[0], std::string(gather_bytes_max + 1, 'x'), 1s);
  REQUIRE_FALSE(got.ok());
  CHECK(got.message() == "an exchange of 67108865 bytes, expected 67108864 at most");
}

}  // namespace rrfp::actors::testing
