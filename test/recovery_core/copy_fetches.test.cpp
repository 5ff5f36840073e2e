/// Which pieces of a copy a node asks for, and when the copy is whole.
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/core/copy_fetches.hpp>

namespace rrfp {
namespace {

using verdict = copy_fetches::verdict;
using piece = std::pair<std::uint64_t, std::uint64_t>;
using pieces = std::vector<piece>;

const copy_key first{7, stage_id{0}, rank_id{0}};
const copy_key second{7, stage_id{1}, rank_id{0}};

/// Offsets and sizes of the requests, which all go to node 3 for the first copy.
pieces of(const std::vector<copy_fetches::request>& requests) {
  pieces all;
  for (const auto& r : requests) {
    CHECK(r.to == node_id{3});
    CHECK(r.what == first);
    all.emplace_back(r.offset, r.size);
  }
  return all;
}

}  // namespace

TEST_CASE("a copy is fetched in pieces, a few ahead, until it is whole") {
  copy_fetches fetches{{.piece_bytes = 10, .pieces_ahead = 2}};
  CHECK(of(fetches.begin(first, node_id{3}, 35)) == pieces{{0, 10}, {10, 10}});
  CHECK(fetches.is_under_way(first));
  CHECK(of(fetches.next(first)).empty());
  CHECK(fetches.arrived(first, 0, 10) == verdict::fits);
  CHECK(of(fetches.next(first)) == pieces{{20, 10}});
  CHECK(fetches.arrived(first, 10, 10) == verdict::fits);
  CHECK(of(fetches.next(first)) == pieces{{30, 5}});
  // The last piece is small, and overtakes the one before.
  CHECK(fetches.arrived(first, 30, 5) == verdict::fits);
  CHECK(of(fetches.next(first)).empty());
  CHECK(fetches.arrived(first, 20, 10) == verdict::last);
  CHECK_FALSE(fetches.is_under_way(first));
  CHECK(fetches.arrived(first, 30, 5) == verdict::unknown);
  CHECK(of(fetches.next(first)).empty());
}

TEST_CASE(
    "a piece that is empty, was not asked for or has another size ends its fetch, and no other") {
  const auto wrong = GENERATE(piece{0, 0}, piece{10, 10}, piece{0, 26}, piece{5, 10}, piece{0, 9});
  copy_fetches fetches{{.piece_bytes = 10, .pieces_ahead = 1}};
  fetches.begin(first, node_id{3}, 25);
  fetches.begin(second, node_id{3}, 5);
  CHECK(fetches.arrived(first, wrong.first, wrong.second) == verdict::missing);
  CHECK_FALSE(fetches.is_under_way(first));
  CHECK(fetches.arrived(second, 0, 5) == verdict::last);
  // The copy may be fetched again, from its start.
  CHECK(of(fetches.begin(first, node_id{3}, 25)) == pieces{{0, 10}});
}

TEST_CASE("a piece that arrives again ends its fetch") {
  copy_fetches fetches{{.piece_bytes = 10, .pieces_ahead = 2}};
  fetches.begin(first, node_id{3}, 25);
  CHECK(fetches.arrived(first, 10, 10) == verdict::fits);
  CHECK(fetches.arrived(first, 10, 10) == verdict::missing);
}

TEST_CASE("pieces are numbered from 0") {
  const copy_fetches fetches{{.piece_bytes = 10, .pieces_ahead = 1}};
  CHECK(fetches.number_of(20) == 2);
  CHECK(fetches.offset_of(2) == 20);
}

TEST_CASE("a node sends pieces of the copies that it holds, and no longer ones") {
  const copy_fetches fetches{{.piece_bytes = 10, .pieces_ahead = 1}};
  CHECK(fetches.may_send(25, 0, 10));
  CHECK(fetches.may_send(25, 20, 5));
  CHECK_FALSE(fetches.may_send(25, 20, 6));
  CHECK_FALSE(fetches.may_send(25, 0, 11));
  CHECK_FALSE(fetches.may_send(5, 0, 6));
  CHECK_FALSE(fetches.may_send(25, ~std::uint64_t{0}, 2));
}

}  // namespace rrfp
