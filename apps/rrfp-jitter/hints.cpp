#include "hints.hpp"

#include <functional>
#include <limits>

#include <rrfp/base/check.hpp>
#include <rrfp/job/plan.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::experiment {

namespace {

/// Added to the seed under which a stale order is recorded; no seed of an experiment is that large.
constexpr std::uint64_t stale_seed_offset = std::uint64_t{1} << 40;

/// The order that the policy gives by readiness in the first step of `j`.
result<std::shared_ptr<const policy_set>> recorded(job::job j) {
  j.dispatch.mode = dispatch_mode::ready;
  study::options_of(j).dispatch.messages = study::messages_kind::asynchronous;
  const auto simulation = job::simulation_of(j, policies::registry(), 1);
  if (!simulation) return simulation.failure();
  auto orders = simulate::nominal_sequences(*simulation, simulation->costs);
  if (!orders) return orders.failure();
  return std::make_shared<const policy_set>(j.dispatch.policy, std::move(*orders));
}

using simulate::mix;

/// The rank of a task of a stage whose original policy is this one.
using rank_function = std::function<std::uint64_t(const policy&, stage_id, const task&)>;

/// Splits backwards as `base` does, and ranks all tasks in one lane by `rank_of`.
class one_lane final : public policy {
 public:
  one_lane(std::string_view name, std::unique_ptr<policy> base, stage_id stage,
           rank_function rank_of)
      : name_(name), base_(std::move(base)), stage_(stage), rank_of_(std::move(rank_of)) {}

  std::string_view name() const override { return name_; }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return base_->backward_of(mb, chunk);
  }
  std::uint32_t lanes() const override { return 1; }
  std::uint32_t lane_of(const task&) const override { return 0; }
  std::uint64_t rank(const task& t) const override { return rank_of_(*base_, stage_, t); }
  lane_order order(const stage_view&) const override { return {.lane = {0}, .count = 1}; }

 private:
  const std::string name_;
  const std::unique_ptr<policy> base_;
  const stage_id stage_;
  const rank_function rank_of_;
};

std::shared_ptr<const policy_set> distorted(std::string_view how,
                                            std::shared_ptr<const policy_set> base,
                                            rank_function rank_of) {
  RRFP_CHECK(base != nullptr, "base must not be null");
  const auto name = std::string{how} + " " + std::string{base->name()};
  return std::make_shared<const policy_set>(name, [=](stage_id stage) {
    return std::make_unique<one_lane>(name, base->make(stage), stage, rank_of);
  });
}

}  // namespace

std::shared_ptr<const policy_set> make_reversed(std::shared_ptr<const policy_set> base) {
  return distorted("reversed", std::move(base), [](const policy& of, stage_id, const task& t) {
    // The last lane comes first, and within a lane the last task.
    constexpr auto lane_size = std::numeric_limits<std::uint64_t>::max() / lanes_max;
    const auto lane = lanes_max - 1 - of.lane_of(t);
    return lane * lane_size + (lane_size - 1 - of.rank(t) % lane_size);
  });
}

std::shared_ptr<const policy_set> make_shuffled(std::shared_ptr<const policy_set> base,
                                                std::uint64_t seed) {
  return distorted("shuffled", std::move(base),
                   [seed](const policy&, stage_id stage, const task& t) {
                     const auto key = mix(seed + 0x9e3779b97f4a7c15U * (stage.value() + 1));
                     const auto kind = static_cast<std::uint64_t>(t.kind);
                     return mix(key ^ mix((std::uint64_t{t.mb.value()} << 32) |
                                          (std::uint64_t{t.chunk.value()} << 4) | kind));
                   });
}

const std::vector<policy_info>& cell_policies::known() const {
  return policies::registry().known();
}

result<std::shared_ptr<const policy_set>> cell_policies::make(std::string_view name,
                                                              const pipeline_shape& shape) const {
  auto policies = policies::registry().make(name, shape);
  if (!policies) return policies;
  auto j = cell_.job;
  j.dispatch.policy = name;
  const auto seed = j.jitter.seed;
  switch (cell_.hint) {
    case hint_quality::own: return policies;
    case hint_quality::reversed: return make_reversed(*policies);
    case hint_quality::shuffled: return make_shuffled(*policies, seed);
    case hint_quality::calm:
      j.jitter = {};
      j.jitter.seed = seed;
      j.delays = {};
      return recorded(std::move(j));
    case hint_quality::stale:
      j.jitter.seed = seed + stale_seed_offset;
      return recorded(std::move(j));
  }
  RRFP_CHECK(false, "unknown hint");
}

}  // namespace rrfp::experiment
