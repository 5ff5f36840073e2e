/// The factory functions of all policies; the registry names them.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>
#include <rrfp/policies/sequence_builder.hpp>

namespace rrfp::policies {

// ---- rounds over ready tasks, for every valid shape

std::unique_ptr<policy> make_bf(const pipeline_shape& shape, stage_id stage);
std::unique_ptr<policy> make_bfw(const pipeline_shape& shape, stage_id stage);
std::unique_ptr<policy> make_bfw_plus(const pipeline_shape& shape, stage_id stage);
std::unique_ptr<policy> make_fb(const pipeline_shape& shape, stage_id stage);
std::unique_ptr<policy> make_f_priority(const pipeline_shape& shape, stage_id stage);
std::unique_ptr<policy> make_b_priority(const pipeline_shape& shape, stage_id stage);

// ---- fixed schedules: each writes the order of stage `s` of a shape that the registry allows; it
// may write more microbatches than the shape has, which are dropped

void one_f_one_b(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);
void gpipe(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);
void interleaved_1f1b(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);
void zb_h1(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);
void zb_h2(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);
void zb_v(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);
void dualpipe_v(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);

/// The table in the file `path`, checked by check_sequences().
result<std::vector<sequence>> table(std::string_view path, const pipeline_shape& shape);

/// The policies of the shared library `path` (rrfp/policies/policy_library.hpp) under `name`,
/// checked by check_policy().
result<std::shared_ptr<const policy_set>> from_library(std::string_view name, std::string_view path,
                                                       const pipeline_shape& shape);

}  // namespace rrfp::policies
