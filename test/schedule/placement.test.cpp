#include <set>

#include <catch2/catch.hpp>

#include <rrfp/schedule/placement.hpp>

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
