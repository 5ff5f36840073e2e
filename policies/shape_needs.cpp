#include <rrfp/policies/shape_needs.hpp>

#include <string>

namespace rrfp::policies {

namespace {

error mismatch(std::string_view policy, const std::string& expected, const std::string& got) {
  return error{"policy " + std::string{policy} + ": expected " + expected + ", got " + got};
}

}  // namespace

status needs_one_chunk(std::string_view policy, const pipeline_shape& shape) {
  if (shape.chunks == 1) return success();
  return mismatch(policy, "chunks = 1", std::to_string(shape.chunks));
}

status needs_placement(std::string_view policy, const pipeline_shape& shape, placement expected) {
  if (shape.layout == expected) return success();
  const std::string chunks = expected == placement::v ? " with chunks = 2" : "";
  return mismatch(policy, "placement " + std::string{name(expected)} + chunks,
                  "placement " + std::string{name(shape.layout)});
}

status needs_microbatches(std::string_view policy, const pipeline_shape& shape, std::uint32_t least,
                          std::string_view formula) {
  if (shape.microbatches >= least) return success();
  return mismatch(policy,
                  "microbatches >= " + std::to_string(least) + " (" + std::string{formula} +
                      ", p = " + std::to_string(shape.stages) + " stages)",
                  std::to_string(shape.microbatches));
}

}  // namespace rrfp::policies
