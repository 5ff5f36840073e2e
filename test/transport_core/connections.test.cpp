/// Which nodes connect.
#include <catch2/catch.hpp>

#include <rrfp/core/connections.hpp>

namespace rrfp::messaging {
namespace {

using nodes = std::set<node_id>;

nodes of(std::initializer_list<std::uint32_t> numbers) {
  nodes all;
  for (const auto n : numbers) all.insert(node_id{n});
  return all;
}

std::vector<stage_id> path(std::initializer_list<std::uint32_t> stages) {
  return {stages.begin(), stages.end()};
}

/// One node for each rank, in the order replica, stage, rank.
connections of_run(std::uint32_t stages, std::vector<stage_id> of_model, std::uint32_t ranks = 1,
                   std::uint32_t replicas = 1) {
  return connections{{stages * ranks * replicas, stages, std::move(of_model), ranks, replicas,
                      [=](replica_id d, stage_id s, rank_id r) {
                        return node_id{(d.value() * stages + s.value()) * ranks + r.value()};
                      }}};
}

}  // namespace

TEST_CASE("A node connects to node 0 and to its neighbours") {
  const auto c = of_run(5, path({0, 1, 2, 3, 4}));
  CHECK(c.of(node_id{0}) == of({1, 2, 3, 4}));
  CHECK(c.of(node_id{1}) == of({0, 2}));
  CHECK(c.of(node_id{2}) == of({0, 1, 3}));
  CHECK(c.of(node_id{3}) == of({0, 2, 4}));
  CHECK(c.of(node_id{4}) == of({0, 3}));
}

TEST_CASE("With several chunks, a neighbour is a stage of the next virtual stage") {
  const auto c = of_run(4, path({0, 1, 2, 3, 0, 1, 2, 3}));
  CHECK(c.of(node_id{3}) == of({0, 2}));
  CHECK(c.of(node_id{2}) == of({0, 1, 3}));
  const auto v = of_run(4, path({0, 1, 2, 3, 3, 2, 1, 0}));
  CHECK(v.of(node_id{3}) == of({0, 2}));
  // With two stages of three chunks, stage 1 is next to stage 0 twice.
  CHECK(of_run(2, path({0, 1, 0, 1, 0, 1})).of(node_id{1}) == of({0}));
}

TEST_CASE("A rank connects to the ranks of its stage, to its replicas, and to no other replica") {
  const auto c = of_run(3, path({0, 1, 2}), 2, 2);
  // Replica 1 stage 1 rank 1 is on node 9, and stage 2 on nodes 10 and 11.
  CHECK(c.of(node_id{9}) == of({0, 3, 7, 8, 11}));
}

TEST_CASE("Connections are added both ways, and none of a node with itself") {
  auto c = of_run(5, path({0, 1, 2, 3, 4}));
  c.add(node_id{1}, node_id{4});
  c.add(node_id{1}, node_id{1});
  CHECK(c.of(node_id{1}) == of({0, 2, 4}));
  CHECK(c.of(node_id{4}) == of({0, 1, 3}));
}

TEST_CASE("The number of connections grows with the nodes, not with their square") {
  const auto count = [](std::uint32_t stages) {
    std::vector<stage_id> of_model;
    for (std::uint32_t s = 0; s < stages; ++s) of_model.emplace_back(s);
    const auto c = of_run(stages, of_model);
    std::size_t all = 0;
    for (std::uint32_t n = 0; n < stages; ++n) all += c.of(node_id{n}).size();
    return all;
  };
  CHECK(count(4096) < 5 * 4096);
}

}  // namespace rrfp::messaging
