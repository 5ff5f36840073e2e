/// Where ranks run after losses, and where their copies are held.
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/core/rank_hosts.hpp>

namespace rrfp {
namespace {

std::vector<node_id> ids(const std::vector<std::uint32_t>& numbers) {
  std::vector<node_id> all;
  for (const auto n : numbers) all.emplace_back(n);
  return all;
}

}  // namespace

TEST_CASE("the buddy of a node is the next one, if possible on another host") {
  const std::vector<std::string> one(3, "a");
  CHECK(buddy_of(node_id{0}, {}, {}, one) == node_id{1});
  CHECK(buddy_of(node_id{2}, {}, {}, one) == node_id{0});
  const std::vector<std::string> two{"a", "a", "b", "b"};
  CHECK(buddy_of(node_id{0}, {}, {}, two) == node_id{2});
  CHECK(buddy_of(node_id{1}, {}, {}, two) == node_id{2});
  CHECK(buddy_of(node_id{3}, {}, {}, two) == node_id{0});
  CHECK_FALSE(buddy_of(node_id{0}, {}, {}, std::vector<std::string>{"a"}));
}

TEST_CASE("a replica on another host is the better buddy, and one of the same node is none") {
  const std::vector<std::string> hosts{"a", "b", "b", "a"};
  const auto replicas = ids({3, 2});
  CHECK(buddy_of(node_id{0}, replicas, {}, hosts) == node_id{2});
  CHECK(buddy_of(node_id{1}, ids({1}), {}, hosts) == node_id{3});
  const std::vector<std::string> one(4, "a");
  CHECK(buddy_of(node_id{0}, replicas, {}, one) == node_id{3});
  CHECK(buddy_of(node_id{0}, ids({0}), {}, one) == node_id{1});
}

TEST_CASE("the buddy is the spare that takes the place of the node, unless it is absent") {
  const std::vector<std::string> all{"a", "b", "c", "d", "e"};
  const auto spares = ids({3, 4});
  CHECK(buddy_of(node_id{0}, ids({2}), spares, all) == node_id{3});
  CHECK(buddy_of(node_id{1}, ids({2}), spares, all) == node_id{4});
  CHECK(buddy_of(node_id{3}, ids({2}), spares, all) == node_id{4});
  const std::vector<std::string> without_4{"a", "b", "c", "d", ""};
  CHECK(buddy_of(node_id{1}, ids({2}), spares, without_4) == node_id{3});
  CHECK(buddy_of(node_id{3}, ids({2}), spares, without_4) == node_id{2});
  const std::vector<std::string> together{"a", "b", "b", "a", "a"};
  CHECK(buddy_of(node_id{0}, ids({2}), spares, together) == node_id{2});
}

TEST_CASE("the ranks of absent nodes move to the nodes of other replicas, the least loaded first") {
  const auto without = [](const std::vector<std::uint32_t>& absent,
                          const std::vector<std::uint32_t>& nodes) {
    return rank_hosts{ids(nodes), 2, {}, true}.without(ids(absent));
  };
  // Three replicas of two ranks, each on a node of its own.
  const std::vector<std::uint32_t> all{0, 1, 2, 3, 4, 5};
  CHECK(without({}, all) == ids(all));
  CHECK(without({3}, all) == ids({0, 1, 2, 1, 4, 5}));
  CHECK(without({3, 4}, all) == ids({0, 1, 2, 1, 0, 5}));
  // Node 1 has two ranks already.
  CHECK(without({1, 3}, all) == ids({0, 5, 2, 5, 4, 5}));
  CHECK(without({2, 3}, {0, 1, 2, 3, 0, 1}) == ids({0, 1, 0, 1, 0, 1}));
  // A node that had ranks of several replicas.
  CHECK(without({2}, {0, 0, 2, 2, 2, 1}) == ids({0, 0, 0, 1, 0, 1}));
  CHECK_FALSE(without({1, 3, 5}, all));
}

TEST_CASE("a spare takes over all ranks of one absent node") {
  const rank_hosts hosts{ids({0, 0, 1, 1}), 4, ids({2, 3}), false};
  CHECK(hosts.without({}) == ids({0, 0, 1, 1}));
  CHECK(hosts.without(ids({0})) == ids({2, 2, 1, 1}));
  CHECK(hosts.without(ids({1})) == ids({0, 0, 3, 3}));
  CHECK(hosts.without(ids({0, 1})) == ids({2, 2, 3, 3}));
  CHECK(hosts.without(ids({3})) == ids({0, 0, 1, 1}));
  CHECK(hosts.without(ids({1, 3})) == ids({0, 0, 2, 2}));
  CHECK_FALSE(hosts.without(ids({0, 1, 3})));
  CHECK_FALSE(hosts.without(ids({0, 2, 3})));
}

TEST_CASE("a node that no other replica can replace gets a spare first") {
  const rank_hosts hosts{ids({0, 1, 2, 3}), 2, ids({4}), true};
  CHECK(hosts.without(ids({0})) == ids({4, 1, 2, 3}));
  CHECK(hosts.without(ids({0, 1})) == ids({4, 3, 2, 3}));
  // Nodes 1 and 3 had the same rank, which the spare then has twice.
  CHECK(hosts.without(ids({0, 1, 3})) == ids({2, 4, 2, 4}));
  CHECK_FALSE(hosts.without(ids({0, 1, 2, 3})));
}

}  // namespace rrfp
