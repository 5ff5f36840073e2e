/// Helpers for the tests of policies: shapes, sequences of a schedule, orders as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/policies/registry.hpp>

namespace rrfp::policies::testing {

inline pipeline_shape linear(std::uint32_t stages, std::uint32_t microbatches) {
  return {stages, 1, microbatches, placement::linear};
}
inline pipeline_shape interleaved(std::uint32_t stages, std::uint32_t chunks,
                                  std::uint32_t microbatches) {
  return {stages, chunks, microbatches, placement::interleaved};
}
inline pipeline_shape folded(std::uint32_t stages, std::uint32_t microbatches) {
  return {stages, 2, microbatches, placement::v};
}

/// The policies of this name, which must support the shape.
inline std::shared_ptr<const policy_set> policies_of(std::string_view name,
                                                     const pipeline_shape& shape) {
  auto made = registry().make(name, shape);
  INFO(name << " for p = " << shape.stages << ", v = " << shape.chunks
            << ", m = " << shape.microbatches << ": " << (made ? "" : made.message()));
  REQUIRE(made.ok());
  return *made;
}

inline std::vector<sequence> sequences_of(std::string_view name, const pipeline_shape& shape) {
  const auto set = policies_of(name, shape);
  REQUIRE(set->sequences() != nullptr);
  return *set->sequences();
}

/// "F0 F1 BW0"
inline std::string text_of(const sequence& order) {
  std::string text;
  for (const auto& t : order) text += (text.empty() ? "" : " ") + to_string(t);
  return text;
}

/// A fixed schedule and a shape that it accepts.
struct schedule_case {
  std::string_view name;
  pipeline_shape shape;
};

/// Every fixed schedule for every shape that it accepts, up to these sizes.
inline std::vector<schedule_case> accepted_cases(std::uint32_t stages_max, std::uint32_t chunks_max,
                                                 std::uint32_t counts_max) {
  std::vector<schedule_case> cases;
  for (std::uint32_t p = 1; p <= stages_max; ++p) {
    for (std::uint32_t m = 1; m <= counts_max; ++m) {
      for (const auto* name : {"one_f_one_b", "gpipe", "zb_h1"})
        cases.push_back({name, linear(p, m)});
      if (m >= 2 * p - 1) cases.push_back({"zb_h2", linear(p, m)});
      cases.push_back({"zb_v", folded(p, m)});
      if (m >= 2 * p) cases.push_back({"dualpipe_v", folded(p, m)});
      for (std::uint32_t v = 1; v <= chunks_max; ++v)
        cases.push_back({"interleaved_1f1b", interleaved(p, v, m)});
    }
  }
  return cases;
}

}  // namespace rrfp::policies::testing
