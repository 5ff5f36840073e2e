/// The order in which a hint ranks the tasks of a stage, fixed at construction: every task of a
/// step has a position, lane after lane, so that "best-ranked ready task" is "first bit set".
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

#include "priority_bitmap.hpp"

namespace rrfp {

/// A range of positions.
struct lane_range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  bool contains(std::uint32_t at) const { return at >= begin && at < end; }
};

class ranking {
 public:
  static constexpr std::uint32_t none = priority_bitmap::none;

  ranking() = default;
  ranking(const pipeline_shape& shape, std::unique_ptr<policy> hint);

  policy& hint() const { return *hint_; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(tasks_.size()); }
  const task& at(std::uint32_t position) const { return tasks_[position]; }
  /// none: the hint does not split this backward as `kind` says.
  std::uint32_t position(task_kind kind, microbatch_id mb, chunk_id chunk) const {
    return position_[shape_.index({kind, mb, chunk})];
  }
  lane_range lane(std::uint32_t number) const { return lanes_[number]; }
  /// The hint's lanes, then those it left out, so that no hint can leave tasks unlaunched.
  std::array<std::uint8_t, lanes_max> order(const stage_view& now) const;

 private:
  std::unique_ptr<policy> hint_;
  pipeline_shape shape_;
  std::vector<task> tasks_;              ///< by position
  std::vector<std::uint32_t> position_;  ///< by pipeline_shape::index()
  std::array<lane_range, lanes_max> lanes_{};
};

}  // namespace rrfp
