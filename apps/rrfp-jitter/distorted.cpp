#include <functional>
#include <limits>

#include <rrfp/base/check.hpp>
#include <rrfp/simulate/keyed_random.hpp>

#include "distorted.hpp"

namespace rrfp::experiment {

namespace {

using weather::mix;

/// The rank of a task whose original policy is this one.
using rank_function = std::function<std::uint64_t(const policy&, const task&)>;

/// Splits backwards as `base` does, and ranks all tasks in one lane by `rank_of`.
class one_lane final : public policy {
 public:
  one_lane(std::string_view name, std::unique_ptr<policy> base, rank_function rank_of)
      : name_(name), base_(std::move(base)), rank_of_(std::move(rank_of)) {}

  std::string_view name() const override { return name_; }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return base_->backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return 1; }
  std::uint32_t lane_of(const task&) const override { return 0; }
  std::uint64_t rank(const task& t) const override { return rank_of_(*base_, t); }
  lane_order order(const stage_view&) const override { return {.lane = {0}, .count = 1}; }

 private:
  const std::string name_;
  const std::unique_ptr<policy> base_;
  const rank_function rank_of_;
};

/// The function of a stage.
using rank_function_maker = std::function<rank_function(stage_id)>;

std::shared_ptr<const policy_set> distorted(std::string_view how,
                                            std::shared_ptr<const policy_set> base,
                                            rank_function_maker make_rank) {
  RRFP_CHECK(base != nullptr, "base must not be null");
  const auto name = std::string{how} + " " + std::string{base->name()};
  return std::make_shared<const policy_set>(name, [=](stage_id stage) {
    return std::make_unique<one_lane>(name, base->make(stage), make_rank(stage));
  });
}

}  // namespace

std::shared_ptr<const policy_set> make_reversed(std::shared_ptr<const policy_set> base) {
  return distorted("reversed", std::move(base), [](stage_id) {
    return [](const policy& of, const task& t) {
      // The last lane comes first, and within a lane the last task.
      constexpr auto lane_size = std::numeric_limits<std::uint64_t>::max() / lanes_max;
      const auto lane = lanes_max - 1 - of.lane_of(t);
      return lane * lane_size + (lane_size - 1 - of.rank(t) % lane_size);
    };
  });
}

std::shared_ptr<const policy_set> make_shuffled(std::shared_ptr<const policy_set> base,
                                                std::uint64_t seed) {
  return distorted("shuffled", std::move(base), [seed](stage_id stage) {
    return [key = mix(seed + 0x9e3779b97f4a7c15U * (stage.value() + 1))](const policy&,
                                                                         const task& t) {
      const auto kind = static_cast<std::uint64_t>(t.kind);
      return mix(key ^ mix((std::uint64_t{t.mb.value()} << 32) |
                           (std::uint64_t{t.chunk.value()} << 4) | kind));
    };
  });
}

}  // namespace rrfp::experiment
