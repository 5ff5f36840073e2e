#include <memory>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/simulate/last_steps.hpp>
#include <rrfp/study/options.hpp>
#include <rrfp/study/pipeline_cost.hpp>

#include "keys.hpp"

namespace rrfp::study {

namespace {

auto& options_in(auto& extra) {
  auto* const of_study = std::any_cast<options>(&extra);
  RRFP_CHECK(of_study != nullptr, "the job was read with the schema of studies");
  return *of_study;
}

/// The costs of cost.preset; microbatches are numbered over all replicas.
class preset_costs final : public simulate::microbatch_costs {
 public:
  preset_costs(const job::job& j, const options& o, std::shared_ptr<const pipeline_cost> model,
               replica_id replica)
      : model_(std::move(model)),
        loads_{model_->described(), o.cost.samples, o.images, o.texts, o.experts, j.jitter.seed},
        tells_shapes_(o.cost.shape_messages && loads_.shapes_vary() && blocks_messages(j)),
        microbatches_(j.pipeline.microbatches),
        first_(std::uint64_t{replica.value()} * microbatches_) {
    for (std::uint32_t s = 0; s < j.pipeline.stages; ++s)
      speeds_.push_back(job::speed_of(j, stage_id{s}));
  }

  double task_ms(step_id step, stage_id stage, task_kind kind, microbatch_id mb) const override {
    const auto all = at(step);
    const auto& cost = (*all)[mb.value()].stages[stage.value()];
    const auto ms = kind == task_kind::forward    ? cost.forward_ms
                    : kind == task_kind::backward ? cost.backward_ms
                                                  : cost.weight_ms;
    return ms / speeds_[stage.value()];
  }
  double message_ms(step_id step, stage_id lower, microbatch_id mb) const override {
    return (*at(step))[mb.value()].messages_ms[lower.value()];
  }
  std::optional<double> shape_ms(stage_id lower) const override {
    return tells_shapes_ ? std::optional{model_->empty_message_ms(lower)} : std::nullopt;
  }
  std::uint64_t activation_bytes(step_id step, stage_id stage, microbatch_id mb) const override {
    return static_cast<std::uint64_t>(
        (*at(step))[mb.value()].stages[stage.value()].activation_bytes);
  }
  std::uint64_t message_bytes(step_id step, stage_id lower, microbatch_id mb) const override {
    return static_cast<std::uint64_t>(
        model_->message_bytes(lower, loads_.of(step, first_ + mb.value())));
  }

 private:
  struct costs_of_microbatch {
    std::vector<part_cost> stages;
    std::vector<double> messages_ms;  ///< by lower stage
  };
  using costs_of_step = std::vector<costs_of_microbatch>;

  costs_of_microbatch costs_with(const workload::load& load) const {
    costs_of_microbatch made;
    for (std::uint32_t s = 0; s < speeds_.size(); ++s) {
      made.stages.push_back(model_->stage(stage_id{s}, load));
      if (s + 1 < speeds_.size()) made.messages_ms.push_back(model_->message_ms(stage_id{s}, load));
    }
    return made;
  }

  std::shared_ptr<const costs_of_step> at(step_id step) const {
    return steps_.at(step.value(), [&] {
      costs_of_step made;
      for (std::uint32_t i = 0; i < microbatches_; ++i)
        made.push_back(costs_with(loads_.of(step, first_ + i)));
      return made;
    });
  }

  const std::shared_ptr<const pipeline_cost> model_;
  const load_source loads_;
  const bool tells_shapes_;
  const std::uint32_t microbatches_;
  const std::uint64_t first_;
  std::vector<double> speeds_;  ///< by stage
  mutable simulate::last_steps<costs_of_step> steps_;
};

class extension final : public job::extension {
 public:
  std::vector<job::section_info> sections() const override {
    return {
        {"machine", "The machine of `cost.preset`, by default a cluster of RTX 4090."},
        {"images", "The images in a sample of a multimodal `cost.preset`."},
        {"texts", "The text in a sample of `cost.preset`."},
        {"experts", "The load of the experts of a `cost.preset` that is a mixture of experts."}};
  }
  std::vector<job::key> keys() const override { return study::keys(); }
  std::any defaults() const override { return options{}; }
  status check(const job::job& j, const job::provenance& from) const override {
    return study::check(j, from);
  }

  bool replaces_costs(const job::job& j) const override {
    return !options_of(j).cost.preset.empty();
  }
  std::shared_ptr<const simulate::microbatch_costs> costs(const job::job& j,
                                                          replica_id replica) const override {
    auto model = workload_of(j);
    RRFP_CHECK(model.ok(), "the preset of a loaded job fits its stages");
    return std::make_shared<const preset_costs>(j, options_of(j), std::move(*model), replica);
  }
  void limit(const job::job& j, memory_limit& of_stage) const override {
    of_stage.run_ahead = options_of(j).dispatch.run_ahead;
    if (of_stage.run_ahead != 0) of_stage.slots = of_stage.activations = 0;
  }
  simulate::transport messages(const job::job& j) const override {
    return blocks_messages(j) ? simulate::transport::blocking : simulate::transport::asynchronous;
  }
};

}  // namespace

const job::schema& schema() {
  static const job::schema all{std::make_unique<const extension>()};
  return all;
}

job::job new_job() { return schema().defaults(); }

options& options_of(job::job& j) { return options_in(j.extra); }
const options& options_of(const job::job& j) { return options_in(j.extra); }

bool blocks_messages(const job::job& j) {
  return options_of(j).dispatch.messages == messages_kind::blocking;
}

}  // namespace rrfp::study
