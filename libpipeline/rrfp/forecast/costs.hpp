/// Recorded times as the costs of simulations: as they are, and of other divisions of the model.
#pragma once

#include <map>
#include <tuple>

#include <rrfp/report/profile.hpp>
#include <rrfp/simulate/simulator.hpp>

namespace rrfp::forecast {

using simulate::nanoseconds;

/// Each forward, and each backward, of a microbatch takes the mean over all virtual stages.
class even_costs final : public simulate::cost_model {
 public:
  /// `all` outlives this.
  even_costs(const simulate::cost_model& all, const report::profile& recorded);
  nanoseconds compute(step_id step, stage_id stage, const task& t) const override;
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override {
    return all_.link(step, to, t);
  }

 private:
  using pass = std::tuple<step_id, microbatch_id, bool>;  ///< true: forward
  struct sum {
    std::map<std::pair<stage_id, chunk_id>, nanoseconds> parts;
    nanoseconds all = 0;
  };

  const simulate::cost_model& all_;
  double virtual_stages_;
  std::map<pass, sum> sums_;
};

/// The costs of a pipeline of half as many stages: each is two neighbours of the recorded one. Its
/// microbatches are those from `first` on.
class merged_costs final : public simulate::cost_model {
 public:
  merged_costs(const simulate::cost_model& all, const pipeline_shape& recorded,
               const pipeline_shape& merged, std::uint32_t first)
      : all_(all), recorded_(recorded), merged_(merged), first_(first) {}
  nanoseconds compute(step_id step, stage_id stage, const task& t) const override;
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override;

 private:
  /// The first of the two recorded virtual stages: 0, else the second: 1.
  virtual_stage_id half(virtual_stage_id merged, std::uint32_t number) const {
    return virtual_stage_id{2 * merged.value() + number};
  }
  task as_recorded(task t, chunk_id chunk) const {
    return {t.kind, microbatch_id{t.mb.value() + first_}, chunk};
  }

  const simulate::cost_model& all_;
  const pipeline_shape& recorded_;
  const pipeline_shape& merged_;
  std::uint32_t first_;
};

}  // namespace rrfp::forecast
