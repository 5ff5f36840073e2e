#include <catch2/catch.hpp>

#include <rrfp/core/leader_choice.hpp>

namespace rrfp::membership_core {

namespace {

const successor zero{0, "a", 1}, one{1, "b", 1}, two{2, "c", 1};
std::set<node_id> nodes(std::initializer_list<std::uint32_t> all) {
  std::set<node_id> found;
  for (const auto n : all) found.emplace(n);
  return found;
}
const std::optional<successor> rendezvous;

/// The first `count` that a process tries.
std::vector<std::optional<successor>> tried(leader_choice c, std::size_t count) {
  std::vector<std::optional<successor>> all;
  for (; all.size() < count; c.note_failed_join()) all.push_back(c.next());
  return all;
}

}  // namespace

TEST_CASE("a process joins node 0 as long as it knows nobody else") {
  leader_choice c;
  CHECK(tried(c, 2) == std::vector{rendezvous, rendezvous});
  CHECK(c.may_be_away());
  c.note_joined(node_id{2}, nodes({0, 1, 2}), {});
  c.note_lost(node_id{0}, false);
  CHECK(tried(c, 2) == std::vector{rendezvous, rendezvous});
}

TEST_CASE("after the loss of the leader a process tries its successors in their order") {
  leader_choice c;
  c.note_joined(node_id{2}, nodes({0, 1, 2}), {zero, one, two});
  CHECK(c.may_be_away());
  SECTION("another node is lost: the leader is tried first") {
    c.note_lost(node_id{1}, false);
    CHECK(c.next() == rendezvous);
    CHECK(c.may_be_away());
    CHECK(c.expected() == nodes({0, 2}));
    CHECK(c.quorum() == nodes({0, 1, 2}));
  }
  SECTION("its connection has ended: a new process of node 0 may be there") {
    c.note_lost(node_id{0}, false);
    CHECK(tried(c, 4) == std::vector<std::optional<successor>>{rendezvous, one, two, rendezvous});
    CHECK_FALSE(c.may_be_away());
  }
  SECTION("it is silent: node 0 is tried last") {
    c.note_lost(node_id{0}, true);
    CHECK(tried(c, 4) == std::vector<std::optional<successor>>{one, two, rendezvous, one});
  }
}

TEST_CASE("node 0 waits for the others at the rendezvous, whoever is lost") {
  leader_choice c;
  c.note_joined(node_id{0}, nodes({0, 1, 2}), {zero, one, two});
  CHECK_FALSE(c.has_others());
  c.note_lost(node_id{2}, true);
  CHECK(c.quorum() == nodes({0, 1, 2}));
  c.note_lost(node_id{0}, true);
  CHECK(c.quorum().empty());
  CHECK(tried(c, 2) == std::vector{rendezvous, rendezvous});
}

TEST_CASE("a successor leads until it is lost, or node 0 is there again") {
  leader_choice c;
  c.note_joined(node_id{2}, nodes({0, 1, 2}), {zero, one, two});
  c.note_lost(node_id{0}, true);
  REQUIRE(c.node() == node_id{1});
  c.note_joined(node_id{2}, nodes({1, 2}), {one, two});
  CHECK(c.quorum() == nodes({1, 2}));
  CHECK(c.next() == one);
  SECTION("it is lost") {
    c.note_lost(node_id{1}, false);
    CHECK(tried(c, 4) == std::vector<std::optional<successor>>{one, two, rendezvous, one});
  }
  SECTION("it is silent") {
    c.note_lost(node_id{1}, true);
    CHECK(tried(c, 4) == std::vector<std::optional<successor>>{two, rendezvous, one, two});
  }
  SECTION("node 0 is there") {
    c.note_return();
    CHECK(tried(c, 3) == std::vector<std::optional<successor>>{rendezvous, one, two});
    CHECK(c.expected() == nodes({0, 1, 2}));
    c.note_joined(node_id{2}, nodes({0, 1, 2}), {zero, one, two});
    CHECK(c.node() == node_id{0});
  }
}

}  // namespace rrfp::membership_core
