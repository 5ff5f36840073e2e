/// Placement of the model: p stages with v chunks each form p*v virtual stages along the model.
///
///   linear        v = 1       virtual stage s is stage s
///   interleaved   any v       chunk c of stage s is virtual stage c*p + s
///   v             v = 2       chunk 0 of stage s is s, chunk 1 is 2p-1-s (the model turns back)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>

namespace rrfp {

enum class placement : std::uint8_t { linear, interleaved, v };

std::string_view name(placement p);
std::optional<placement> placement_of(std::string_view name);

/// One chunk of one stage.
struct chunk_position {
  stage_id stage;
  chunk_id chunk;

  auto operator<=>(const chunk_position&) const = default;
};

/// The dimensions of a pipeline.
struct pipeline_shape {
  std::uint32_t stages = 1;
  std::uint32_t chunks = 1;
  std::uint32_t microbatches = 1;
  placement layout = placement::linear;

  bool operator==(const pipeline_shape&) const = default;

  std::uint32_t virtual_stages() const { return stages * chunks; }
  virtual_stage_id virtual_stage(stage_id stage, chunk_id chunk) const;
  chunk_position at(virtual_stage_id vs) const;
  bool is_first(virtual_stage_id vs) const { return vs.value() == 0; }
  bool is_last(virtual_stage_id vs) const { return vs.value() + 1 == virtual_stages(); }

  /// The error names the invalid size or combination (zero stages, linear with two chunks, ...).
  status validate() const;
};

}  // namespace rrfp
