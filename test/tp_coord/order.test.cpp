#include <catch2/catch.hpp>

#include <rrfp/tp_coord/fingerprint.hpp>
#include <rrfp/tp_coord/launch_order.hpp>

namespace rrfp::tp_coord::test {

namespace {

fingerprint some_print() {
  return {{step_id{12}, launch_seq{57}, {task_kind::forward, microbatch_id{3}, chunk_id{0}}},
          2,
          operation::sum,
          element::float32,
          rank_id{0},
          4096};
}

}  // namespace

TEST_CASE("a fingerprint prints as a phrase") {
  CHECK(to_string(some_print()) ==
        "all-reduce (sum) of 4096 float32, number 2 of F3 (step 13, launch 57)");
  auto f = some_print();
  f.op = operation::broadcast;
  f.root = rank_id{1};
  f.type = element::int64;
  CHECK(to_string(f) == "broadcast from rank 1 of 4096 int64, number 2 of F3 (step 13, launch 57)");
  f.op = operation::barrier;
  CHECK(to_string(f) == "barrier, number 2 of F3 (step 13, launch 57)");
}

TEST_CASE("every field of a fingerprint survives encoding and causes a disagreement") {
  const auto differ = [](auto change) {
    auto f = some_print();
    change(f);
    CHECK(decode(encode(f)) == f);
    const std::vector<fingerprint> prints{some_print(), some_print(), f};
    const auto text = disagreement(prints);
    REQUIRE(text.has_value());
    CHECK_THAT(*text, Catch::Contains("rank 0 is in " + to_string(some_print())) &&
                          Catch::Contains("rank 2 in " + to_string(f)));
  };
  differ([](auto& f) { f.site.step = step_id{std::uint64_t{1} << 40}; });
  differ([](auto& f) { f.site.launch = launch_seq{58}; });
  differ([](auto& f) { f.site.launched_task.kind = task_kind::backward_weight; });
  differ([](auto& f) { f.site.launched_task.mb = microbatch_id{4}; });
  differ([](auto& f) { f.site.launched_task.chunk = chunk_id{1}; });
  differ([](auto& f) { f.ordinal = 3; });
  differ([](auto& f) { f.op = operation::barrier; });
  differ([](auto& f) { f.type = element::float64; });
  differ([](auto& f) { f.root = rank_id{9}; });
  differ([](auto& f) { f.count = std::uint64_t{1} << 33; });
  const std::vector<fingerprint> same{some_print(), some_print()};
  CHECK(!disagreement(same).has_value());
}

TEST_CASE("bytes that are not a fingerprint are refused") {
  auto bytes = encode(some_print());
  CHECK(decode(bytes).has_value());
  CHECK(!decode(std::span(bytes).first(47)).has_value());
  for (const std::size_t at : {0u, 4u, 5u, 6u}) {
    auto bad = bytes;
    bad[at] = std::byte{0xee};
    CHECK(!decode(bad).has_value());
  }
}

TEST_CASE("launches are accepted in the order of their numbers") {
  const task f1{task_kind::forward, microbatch_id{1}, chunk_id{0}};
  const task b0{task_kind::backward, microbatch_id{0}, chunk_id{0}};
  launch_order order;
  CHECK(order.accept(launch_seq{0}, f1).ok());
  CHECK(order.accept(launch_seq{1}, b0).ok());

  const auto early = order.accept(launch_seq{4}, f1);
  REQUIRE(!early.ok());
  CHECK(early.message() ==
        "launch 4 (F1) arrived when 2 was due after B0: launches between them are missing");
  const auto again = order.accept(launch_seq{1}, b0);
  REQUIRE(!again.ok());
  CHECK(again.message() == "launch 1 (B0) arrived when 2 was due after B0: it has already run");
  CHECK(order.accept(launch_seq{2}, f1).ok());
}

}  // namespace rrfp::tp_coord::test
