#include <rrfp/torch_actors/torch_framework.hpp>

#include <utility>

#include <ATen/Version.h>
#include <fmt/format.h>

#include <rrfp/accelerator/assignment.hpp>
#include <rrfp/accelerator/load.hpp>
#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/data/source.hpp>
#include <rrfp/torch/model.hpp>
#include <rrfp/torch/pretrained.hpp>
#include <rrfp/torch_actors/torch_model.hpp>

#include "job_data.hpp"
#include "tcp_store.hpp"

namespace rrfp::actors {

namespace {

using shared_source = std::shared_ptr<const data::source>;

/// Nothing: the ranks compute on the host.
result<std::optional<accelerated_devices>> accelerated_devices_of(const job::job& j) {
  if (j.device.kind != job::device_kind::cuda) return std::optional<accelerated_devices>{};
  auto platform = accelerator::load_cuda(j.cuda.deterministic);
  if (!platform)
    return job::blame(j, "device.kind", fmt::format("\"cuda\": {}", platform.message()));
  const auto present = static_cast<std::uint32_t>((*platform)->devices().size());
  auto use = accelerator::choose_devices(j.cuda.gpus, present);
  if (!use) return job::blame(j, "device.gpus", use.message());
  return std::optional{accelerated_devices{std::move(*platform), std::move(*use),
                                           j.cuda.deterministic, j.cuda.collectives}};
}

class torch_job final : public job_model {
 public:
  torch_job(job::job j, std::optional<accelerated_devices> devices, shared_source training,
            shared_source held_out)
      : job_(std::move(j)),
        devices_(std::move(devices)),
        training_(std::move(training)),
        held_out_(std::move(held_out)) {}

  status complete(session_setup& setup) const override {
    if (devices_) compute_on(setup, *devices_);
    const auto weights = pretrained();
    if (!weights) return weights.failure();
    auto data = data_of_job(training_, held_out_, job_, setup.shape);
    if (held_out_ != nullptr) setup.evaluation = {job_.eval.every, job_.eval.batches};
    setup.microbatches = [data](step_id step) { return data->counts(step); };
    const auto cut = job::layers_of_parts(job_);
    // If bytes are limited, count the bytes of each microbatch, not of the expected layout.
    if (job_.dispatch.slot_bytes != 0)
      setup.slot_bytes = [model = job_.model, pipeline = job_.pipeline, shape = setup.shape, cut,
                          data](step_id step, replica_id replica, stage_id s, microbatch_id mb) {
        const auto counts = data->counts(step).or_equal(pipeline.replicas, shape.microbatches);
        const microbatch_id in_all{counts.first_of(replica) + mb.value()};
        const auto sizes = compute::estimate(model, data->layout(step, in_all), cut, pipeline.tp,
                                             pipeline.recompute);
        return compute::slot_bytes(sizes, shape, s);
      };
    torch_model model;
    model.make_chunk = [model = job_.model, cut, seed = job_.train.seed, weights = *weights](
                           virtual_stage_id vs, std::shared_ptr<compute::rank_group> group)
        -> result<std::unique_ptr<compute::stage_module>> {
      auto chunk =
          compute::make_model_chunk(model, compute::layers_of(cut, vs), seed, std::move(group));
      if (!chunk || weights == nullptr) return chunk;
      if (auto loaded = compute::load_pretrained(**chunk, *weights); !loaded)
        return loaded.failure();
      return chunk;
    };
    model.data = std::move(data);
    model.recompute = job_.pipeline.recompute;
    train(setup, std::move(model));
    setup.checkpoint =
        checkpoint_setup_of(job_, identity_of(job_, training_->fingerprint(), weights->get()));
    return success();
  }

  std::string fingerprint() const override {
    auto text = fmt::format("{:016x}", training_->fingerprint());
    if (held_out_) text += fmt::format("{:016x}", held_out_->fingerprint());
    return text;
  }

  std::string report() const override { return training_->report(); }

  result<std::string> decode_images(std::chrono::duration<double> limit,
                                    std::chrono::steady_clock::time_point end) const override {
    const auto samples = std::uint64_t{job_.pipeline.microbatches} * job_.pipeline.replicas *
                         job_.data.microbatch_size;  // per step
    // One epoch contains all samples.
    const auto unread = training_->undecoded_samples();
    const auto steps_max = unread / samples + 1;
    const auto all = std::min(unread, std::min(job_.train.steps, steps_max) * samples);
    std::uint64_t decoded = 0;
    // Whole steps, whose microbatches may have other samples than their places say.
    for (step_id step; decoded < all; step = step_id{step.value() + 1}) {
      const auto counts =
          training_->counts(step).or_equal(job_.pipeline.replicas, job_.pipeline.microbatches);
      for (std::uint32_t mb = 0; mb < counts.total(); ++mb) {
        if (std::chrono::steady_clock::now() >= end)
          return fmt::format(
              "images: decoded {} of {} samples in {:g} s, in the order of the run; {} are not "
              "checked\n",
              decoded, all, limit.count(), all - decoded);
        try {
          const auto batch = training_->load(step, microbatch_id{mb});
          decoded = std::min(all, decoded + batch.lengths.size());
        } catch (const std::exception& e) {
          return job::blame(job_, job::key_of(job_.data), e.what());
        }
      }
    }
    return all == 0 ? std::string{} : fmt::format("images: decoded all {} samples\n", all);
  }

 private:
  /// Null: the model is not pretrained.
  result<std::shared_ptr<const safetensors::collection>> pretrained() const {
    if (job_.model.pretrained.empty()) return std::shared_ptr<const safetensors::collection>{};
    auto opened = safetensors::collection::open(job_.model.pretrained);
    if (!opened) return job::blame(job_, "model.pretrained", opened.message());
    if (auto fits = compute::check_pretrained(job_.model, *opened); !fits)
      return job::blame(job_, "model.pretrained", fits.message());
    return std::make_shared<const safetensors::collection>(std::move(*opened));
  }

  const job::job job_;
  const std::optional<accelerated_devices> devices_;  ///< as accelerated_devices_of()
  const shared_source training_;
  const shared_source held_out_;  ///< null: the job evaluates nothing
};

class torch_framework final : public framework {
 public:
  result<std::shared_ptr<const job_model>> open(const job::job& j) override {
    if (j.device.kind == job::device_kind::emulated) return std::shared_ptr<const job_model>{};
    auto devices = accelerated_devices_of(j);
    if (!devices) return devices.failure();
    auto training = open(j, j.data, std::string{job::key_of(j.data)}, training_);
    if (!training) return training.failure();
    shared_source held_out;
    if (const auto d = job::held_out_data(j)) {
      const auto kind = job::key_of(*d).substr(std::string_view{"data."}.size());
      auto opened = open(j, *d, "eval." + std::string{kind}, held_out_);
      if (!opened) return opened.failure();
      held_out = std::move(*opened);
    }
    return std::shared_ptr<const job_model>{std::make_shared<const torch_job>(
        j, *std::move(devices), std::move(*training), std::move(held_out))};
  }

  std::string vector_instructions() const override { return at::get_cpu_capability(); }

  result<std::unique_ptr<agent_store>> connect_store(
      const launch_place& place, std::chrono::milliseconds limit) const override {
    return connect_tcp_store(place, limit);
  }

 private:
  struct opened {
    data::source_config config;
    shared_source source;
  };

  /// `key`: where the job names the data.
  static result<shared_source> open(const job::job& j, const job::data_options& d,
                                    const std::string& key, opened& last) {
    data::source_config config;
    config.data = d;
    config.seed = j.train.seed;
    config.microbatches = j.pipeline.microbatches * j.pipeline.replicas;
    if (d.pack == job::sample_packing::cost) {
      config.replicas = j.pipeline.replicas;
      config.model = j.model;
    }
    config.vocabulary = j.model.vocabulary;
    config.patch = j.model.vision.patch;
    config.image_token = j.model.vision.image_token;
    if (last.source != nullptr && config == last.config) return last.source;
    auto source = data::open_source(config);
    if (!source) return job::blame(j, key, source.message());
    last = {std::move(config), std::move(*source)};
    return last.source;
  }

  opened training_;
  opened held_out_;
};

}  // namespace

status compute_on_devices_of(const job::job& j, session_setup& setup) {
  auto found = accelerated_devices_of(j);
  if (!found) return found.failure();
  if (auto& devices = *found) compute_on(setup, *std::move(devices));
  return success();
}

std::unique_ptr<framework> make_torch_framework() { return std::make_unique<torch_framework>(); }

}  // namespace rrfp::actors
