#include <set>

#include <catch2/catch.hpp>

#include <rrfp/core/placement.hpp>

#include "death.hpp"

namespace rrfp {

TEST_CASE("Linear placement is the identity") {
  const pipeline_shape shape{4, 1, 8, placement::linear};
  CHECK(shape.virtual_stages() == 4);
  for (std::uint32_t s = 0; s < 4; ++s)
    CHECK(shape.virtual_stage(stage_id{s}, chunk_id{0}) == virtual_stage_id{s});
}

TEST_CASE("Interleaved placement puts chunk c of stage s at c*p + s") {
  const pipeline_shape shape{3, 2, 1, placement::interleaved};
  CHECK(shape.virtual_stage(stage_id{2}, chunk_id{0}) == virtual_stage_id{2});
  CHECK(shape.virtual_stage(stage_id{0}, chunk_id{1}) == virtual_stage_id{3});
  CHECK(shape.virtual_stage(stage_id{2}, chunk_id{1}) == virtual_stage_id{5});
}

TEST_CASE("V placement gives the first stage the first and the last virtual stage") {
  const pipeline_shape shape{3, 2, 1, placement::v};
  CHECK(shape.virtual_stage(stage_id{0}, chunk_id{0}) == virtual_stage_id{0});
  CHECK(shape.virtual_stage(stage_id{2}, chunk_id{0}) == virtual_stage_id{2});
  CHECK(shape.virtual_stage(stage_id{2}, chunk_id{1}) == virtual_stage_id{3});
  CHECK(shape.virtual_stage(stage_id{0}, chunk_id{1}) == virtual_stage_id{5});
}

TEST_CASE("at() and virtual_stage() are inverse and cover every position once") {
  for (std::uint32_t p = 1; p <= 9; ++p) {
    for (const auto layout : {placement::linear, placement::interleaved, placement::v}) {
      for (std::uint32_t v = 1; v <= 4; ++v) {
        const pipeline_shape shape{p, v, 1, layout};
        if (!shape.validate()) continue;
        std::set<chunk_position> places;
        for (std::uint32_t vs = 0; vs < shape.virtual_stages(); ++vs) {
          const auto place = shape.at(virtual_stage_id{vs});
          places.insert(place);
          REQUIRE(shape.virtual_stage(place.stage, place.chunk) == virtual_stage_id{vs});
          REQUIRE(shape.is_first(virtual_stage_id{vs}) == (vs == 0));
          REQUIRE(shape.is_last(virtual_stage_id{vs}) == (vs == p * v - 1));
        }
        REQUIRE(places.size() == p * v);
      }
    }
  }
}

TEST_CASE("F needs the F of the virtual stage before, B and BW the B behind, W neither") {
  const pipeline_shape shape{2, 2, 4, placement::interleaved};
  const task forward{task_kind::forward, microbatch_id{3}, chunk_id{1}};
  const placed_task before{virtual_stage_id{1}, stage_id{1}, task_of("F3").value()};
  CHECK(shape.producer_of(stage_id{0}, forward) == before);
  CHECK(shape.consumer_of(stage_id{1}, before.what) ==
        placed_task{virtual_stage_id{2}, stage_id{0}, forward});
  for (const auto kind : {task_kind::backward, task_kind::backward_weight}) {
    const placed_task behind{virtual_stage_id{2}, stage_id{0}, task_of("B3.1").value()};
    CHECK(shape.producer_of(stage_id{1}, {kind, microbatch_id{3}, chunk_id{0}}) == behind);
    CHECK(shape.consumer_of(stage_id{0}, {kind, microbatch_id{3}, chunk_id{1}}) ==
          placed_task{virtual_stage_id{1}, stage_id{1}, task_of("B3").value()});
  }
  CHECK_FALSE(shape.producer_of(stage_id{1}, task_of("W3").value()));
  CHECK_FALSE(shape.consumer_of(stage_id{1}, task_of("W3").value()));
}

TEST_CASE("The V placement passes results to the other chunk of the stage where it turns") {
  const pipeline_shape shape{3, 2, 1, placement::v};
  const placed_task turned{virtual_stage_id{3}, stage_id{2}, task_of("F0.1").value()};
  CHECK(shape.consumer_of(stage_id{2}, task_of("F0").value()) == turned);
  const placed_task back{virtual_stage_id{2}, stage_id{2}, task_of("B0").value()};
  CHECK(shape.consumer_of(stage_id{2}, task_of("BW0.1").value()) == back);
  CHECK_FALSE(shape.consumer_of(stage_id{0}, task_of("F0.1").value()));
  CHECK_FALSE(shape.producer_of(stage_id{0}, task_of("B0.1").value()));
}

TEST_CASE("Producers and consumers form one chain from the first virtual stage to the last") {
  for (const auto layout : {placement::linear, placement::interleaved, placement::v})
    for (std::uint32_t p = 1; p <= 4; ++p)
      for (std::uint32_t v = 1; v <= 3; ++v) {
        const pipeline_shape shape{p, v, 2, layout};
        if (!shape.validate()) continue;
        for (std::uint32_t vs = 0; vs < p * v; ++vs) {
          const auto [stage, chunk] = shape.at(virtual_stage_id{vs});
          const task forward{task_kind::forward, microbatch_id{1}, chunk};
          const task backward{task_kind::backward, microbatch_id{1}, chunk};
          const placed_task here{virtual_stage_id{vs}, stage, forward};
          const placed_task here_back{virtual_stage_id{vs}, stage, backward};
          const auto next = shape.consumer_of(stage, forward);
          const auto next_back = shape.producer_of(stage, backward);
          REQUIRE(next.has_value() == (vs + 1 < p * v));
          REQUIRE(next_back.has_value() == next.has_value());
          REQUIRE(shape.producer_of(stage, forward).has_value() == (vs > 0));
          REQUIRE(shape.consumer_of(stage, backward).has_value() == (vs > 0));
          if (!next) continue;
          REQUIRE(next->vs == virtual_stage_id{vs + 1});
          REQUIRE(shape.at(next->vs) == chunk_position{next->stage, next->what.chunk});
          REQUIRE(shape.producer_of(next->stage, next->what) == here);
          REQUIRE(next_back->vs == next->vs);
          REQUIRE(shape.consumer_of(next_back->stage, next_back->what) == here_back);
        }
      }
}

TEST_CASE("An impossible shape is refused with what was expected and what came") {
  CHECK(pipeline_shape{1, 1, 1, placement::linear}.validate().ok());
  CHECK(pipeline_shape{1, 2, 1, placement::v}.validate().ok());
  CHECK(pipeline_shape{0, 1, 1, placement::linear}.validate().message() ==
        "stages: expected at least 1, got 0");
  CHECK(pipeline_shape{1, 0, 1, placement::interleaved}.validate().message() ==
        "chunks: expected at least 1, got 0");
  CHECK(pipeline_shape{1, 1, 0, placement::linear}.validate().message() ==
        "microbatches: expected at least 1, got 0");
  CHECK(pipeline_shape{2, 2, 1, placement::linear}.validate().message() ==
        "placement linear: expected chunks = 1, got 2");
  CHECK(pipeline_shape{2, 3, 1, placement::v}.validate().message() ==
        "placement v: expected chunks = 2, got 3");
  CHECK(pipeline_shape{2, 1, 1, placement::v}.validate().message() ==
        "placement v: expected chunks = 2, got 1");
}

TEST_CASE("The microbatches of a replica are numbered after those of the replicas before it") {
  const microbatch_counts counts{{3, 0, 5}};
  CHECK(counts.total() == 8);
  CHECK(counts.of(replica_id{1}) == 0);
  CHECK(counts.first_of(replica_id{0}) == 0);
  CHECK(counts.first_of(replica_id{1}) == 3);
  CHECK(counts.first_of(replica_id{2}) == 3);
  CHECK(counts.replica_of(microbatch_id{2}) == replica_id{0});
  CHECK(counts.replica_of(microbatch_id{3}) == replica_id{2});
  CHECK(counts.or_equal(3, 4) == counts);
  CHECK(microbatch_counts{}.or_equal(2, 4) == microbatch_counts::equal(2, 4));
  CHECK(microbatch_counts{}.empty());
  CHECK(microbatch_counts::equal(2, 4) == microbatch_counts{{4, 4}});
}

TEST_CASE(
    "Replicas that run each other's microbatches leave what comes first and end with the rest") {
  // Sums of 4, 4 and 2; replica 1 takes the first 5, replica 0 the next 1, replica 2 the last 4.
  const microbatch_shares s{{{4, 4, 2}}, {1, 5, 4}, {replica_id{1}, replica_id{0}, replica_id{2}}};
  CHECK(s.validate(3).ok());
  CHECK(s.parts_of(replica_id{1}) ==
        std::vector<sum_part>{{replica_id{1}, 4, 1, true, false}, {replica_id{0}, 0, 4}});
  CHECK(s.parts_of(replica_id{0}) == std::vector<sum_part>{{replica_id{1}, 5, 1, false, false}});
  CHECK(s.parts_of(replica_id{2}) ==
        std::vector<sum_part>{{replica_id{2}, 8, 2}, {replica_id{1}, 6, 2, false, true}});
  CHECK(s.in_all(replica_id{2}, microbatch_id{2}) == microbatch_id{6});
  CHECK(s.place_of(replica_id{2}, microbatch_id{3}).sum == replica_id{1});
  CHECK(s.place_of(replica_id{2}, microbatch_id{3}).mb == microbatch_id{3});
  CHECK(s.runner_of(microbatch_id{5}) == replica_id{0});
  std::set<microbatch_id> run;
  for (std::uint32_t r = 0; r < 3; ++r)
    for (std::uint32_t mb = 0; mb < s.of(replica_id{r}); ++mb)
      CHECK(s.runner_of(*run.insert(s.in_all(replica_id{r}, microbatch_id{mb})).first) ==
            replica_id{r});
  CHECK(run.size() == 10);

  const microbatch_shares own{{{4, 0, 2}}};
  CHECK(own.parts_of(replica_id{1}).empty());
  CHECK(own.parts_of(replica_id{2}) == std::vector<sum_part>{{replica_id{2}, 4, 2}});
  CHECK(own.in_all(replica_id{2}, microbatch_id{1}) == microbatch_id{5});
}

TEST_CASE("Shares that do not fit are refused") {
  const std::vector order{replica_id{0}, replica_id{1}};
  const auto why = [](const microbatch_shares& s) { return s.validate(2).message(); };
  CHECK(why({{{4, 4, 4}}}) == "the counts of microbatches: expected 2, got 3");
  CHECK(why({{{4, 4}}, {8}, order}) == "the shares: expected 2, got 1");
  CHECK(why({{{4, 4}}, {3, 4}, order}) == "the sum of the shares: expected 8, got 7");
  CHECK(why({{{4, 4}}, {4, 4}, {replica_id{1}, replica_id{1}}}) ==
        "the order of the shares: expected each replica once");
}

TEST_CASE("Names of placements parse to their placements") {
  for (const auto p : {placement::linear, placement::interleaved, placement::v})
    CHECK(placement_of(name(p)) == p);
  CHECK_FALSE(placement_of("V").has_value());
}

TEST_CASE("A chunk outside the pipeline aborts") {
  const pipeline_shape shape{3, 2, 1, placement::v};
  using testing::abort_message;
  CHECK_THAT(abort_message([&] { (void)shape.virtual_stage(stage_id{3}, chunk_id{0}); }),
             Catch::Contains("stage or chunk out of range"));
  CHECK_THAT(abort_message([&] { (void)shape.virtual_stage(stage_id{0}, chunk_id{2}); }),
             Catch::Contains("stage or chunk out of range"));
  CHECK_THAT(abort_message([&] { (void)shape.at(virtual_stage_id{6}); }),
             Catch::Contains("virtual stage out of range"));
}

}  // namespace rrfp
